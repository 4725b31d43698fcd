"""How the documentation becomes a site: ``make docs``. Warnings are errors; nothing is loaded from elsewhere."""

project = "choria-provisioner"
extensions = ["myst_parser"]
exclude_patterns = ["examples"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "choria-provisioner"
html_favicon = "images/icon.svg"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f6b", "color-brand-content": "#1f6f6b"},
    "dark_css_variables": {"color-brand-primary": "#7fcdc0", "color-brand-content": "#7fcdc0"},
}
