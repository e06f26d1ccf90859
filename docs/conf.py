"""Sphinx settings: Markdown pages, docstrings in Google style, and no network while building."""

from __future__ import annotations

from sphinx.ext import autosummary

from boxloop.version import __version__

# A first sentence that names an equation does not end there.
autosummary.WELL_KNOWN_ABBREVIATIONS += ("eq.", "sect.")

project = "boxloop"
author = "The boxloop developers"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Python sessions are copied without their prompts and output. Blocks of output have no button.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"

napoleon_custom_sections = ["Deviation"]
autosummary_generate = True
autosummary_imported_members = True
# On a file system that ignores case these pages would overwrite those of functions.
autosummary_filename_map = {
    "boxloop.criticise.Calibration": "boxloop.criticise.Calibration-class",
    "boxloop.criticise.Mega": "boxloop.criticise.Mega-class",
    "boxloop.networks.Audit": "boxloop.networks.Audit-class",
}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {
    "members": True,
    # Members of these are not ours to document, nor are those that scikit-learn adds.
    "inherited-members": "BaseEstimator,ClassifierMixin,RegressorMixin,MultiOutputMixin,OutlierMixin,TransformerMixin,"
    "ClassNamePrefixFeaturesOutMixin,MetaEstimatorMixin,Protocol,Generic,BaseException,tuple,object",
    "exclude-members": "get_metadata_routing,get_params,set_params,set_output,set_fit_request,"
    "set_partial_fit_request,set_predict_request,set_score_request,set_transform_request,"
    "set_inverse_transform_request,set_predict_proba_request,"
    # Properties that the docstring of their class lists among its attributes.
    "covariance_,noise_,scale_,temperature_",
}

html_theme = "furo"
html_title = "boxloop"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
