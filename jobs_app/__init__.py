"""Work beside the turn: jobs, schedules, delivery, shells, subagents and the recovery sweep."""
