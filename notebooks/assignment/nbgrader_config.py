"""nbgrader settings for "Will it fit?": copy beside `source/` in your course directory."""

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.preprocessors import ClearHiddenTests, GetGrades, NbGraderPreprocessor
from nbgrader.utils import is_grade

c = get_config()  # noqa: F821  # nbgrader provides it


class HideTracebacks(NbGraderPreprocessor):
    """Show an error of a check cell by its message alone: a traceback quotes the hidden tests."""

    def preprocess_cell(self, cell, resources, cell_index):
        """Shorten the errors of a check cell that `trainmem.check` hasn't made one line of."""
        for output in cell.get("outputs", []) if is_grade(cell) else []:
            if output.output_type == "error" and output.ename != "CheckFailed":
                output.traceback = [f"{output.ename}: {output.evalue}".removesuffix(": ")]
        return cell, resources


# Seconds per cell. The slowest one takes about two; an endless loop is interrupted after this.
c.Execute.timeout = 30

# A kernel that doesn't answer is killed at once instead of being asked to shut down.
c.Execute.shutdown_kernel = "immediate"

# Feedback shows the points and the hints, and not the hidden tests with the right rules.
c.GenerateFeedback.preprocessors = [
    GetGrades,
    ClearHiddenTests,
    HideTracebacks,
    CSSHTMLHeaderPreprocessor,
]
