"""Text for people: tables, descriptions, diffs, history, and progress. Pure, except for the live display."""
