"""The report of a run (`mini report`), and the likely causes of a low AP (`mini doctor`).

`run_files.py` reads what a run has left, and trusts none of it. `doctor.py` ranks what the files
causes_*.py find. `page.py` puts the report together from the sections in sections_*.py; `html.py`
and `charts.py` write HTML and SVG, `tiles.py` the pictures.
"""
