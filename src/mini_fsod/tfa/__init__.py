"""The few-shot detector that mines first: TFA (Wang et al., 2020; protocol.md, section 2)."""
