"""One scheduling idea per file. Plugins read the state through a view and never write it."""
