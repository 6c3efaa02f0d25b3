"""nbgrader settings for "Will it fit?": copy beside `source/` in your course directory."""

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.preprocessors import ClearHiddenTests, GetGrades

c = get_config()  # noqa: F821  # nbgrader provides it

# Seconds per cell. The slowest one takes about two; an endless loop is interrupted after this.
c.Execute.timeout = 30

# A kernel that doesn't answer is killed at once instead of being asked to shut down.
c.Execute.shutdown_kernel = "immediate"

# Feedback shows the points and the hints, and not the hidden tests with the right rules.
c.GenerateFeedback.preprocessors = [GetGrades, ClearHiddenTests, CSSHTMLHeaderPreprocessor]
