"""Few-shot fine-tuning as in TFA (Wang et al., 2020): the stages `transfer` and `tune`."""
