"""The explorer: a web page on which one watches a program being composed."""
