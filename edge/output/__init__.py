"""Output for people: texts and log lines, with texts of peers escaped. It imports no other package of the project."""
