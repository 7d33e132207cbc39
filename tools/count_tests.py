"""Sums the JUnit reports of a folder: python tools/count_tests.py FOLDER FAILED_RUNS.

Prints one line in pytest's words and returns 1 when a test or a whole run has failed. A run that
was stopped or aborted leaves no report, so it counts through FAILED_RUNS.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree


def count(folder):
    """Tests of all reports in `folder`: (passed, failed, skipped)."""
    total = failed = skipped = 0
    for report in sorted(Path(folder).glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total += int(suite.get("tests"))
            failed += int(suite.get("failures")) + int(suite.get("errors"))
            skipped += int(suite.get("skipped"))
    return total - failed - skipped, failed, skipped


def main(folder, failed_runs):
    passed, failed, skipped = count(folder)
    # A failure on another rank than 0, or an abort, is in no report.
    failed = max(failed, int(failed_runs))
    print(f"all runs: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
