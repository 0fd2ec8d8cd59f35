"""The step of a build that makes columns of the documents' fields, so that searches can filter by them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import BadDocument
from shoal.long_task import Report, TaskProgress
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.columns import save_columns
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.json_lines import read_lines
from shoal_workers.index.files.manifest import DOCUMENTS

#: Documents read from one report of progress to the next.
REPORT_EVERY = 4_096


def write_columns(
    folder: Path, state: BuildState, kinds: Mapping[str, str], report: Report
) -> dict[str, dict[str, Any]]:
    """Write the columns of the documents in the folder of a build; return the kinds of the fields as they were found.

    `kinds` are those of some fields; the others get the kind that all their values have. Memory grows by the distinct
    strings of all fields, and by 8 to 12 bytes a value. Raises BadDocument for a value of another kind than the one
    given.
    """
    fields = DocumentFields(kinds)
    for number, document in enumerate(read_lines(folder / DOCUMENTS), 1):
        fields.add(document)
        if number % REPORT_EVERY == 0:
            fraction = number / state.count
            report(TaskProgress(state.num_rows, state.num_bad, state.first_bad, fraction, "reading fields"))
    found = fields.kinds_found()
    try:
        save_columns(folder, fields.columns(), fields.num_left_out)
    except BadDocument as error:
        raise BadDocument(f"{folder.parent}: {error.message}") from error
    return found
