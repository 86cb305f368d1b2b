"""Text output for users: tables, descriptions, diffs and progress. Pure, except for the displays."""
