"""What the site needs beside Sphinx and its extensions: see docs/conf.py."""
