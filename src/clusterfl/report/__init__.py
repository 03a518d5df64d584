"""The report: tables, figures and a page."""
