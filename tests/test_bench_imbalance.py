"""The benchmark of forced imbalance: both trees by the same steps, and what a repartition costs."""

import json

import pytest
from conftest import ROOT

SCRIPT = ROOT / "benchmarks" / "imbalance.py"


@pytest.mark.timeout(200)
def test_two_ranks_are_thrown_out_of_balance_and_back(city, tmp_path, mpirun):
    found = tmp_path / "found.json"
    done = mpirun(
        2, SCRIPT, city, "--rounds", 2, "--batches", 2, "--json", found, "backend.name=host",
        "backend.threads=1", "train.batch=2", timeout=150,
    )
    assert done.returncode == 0, done.stdout
    rows = json.loads(found.read_text(encoding="utf-8"))
    assert [row["skew"] for row in rows] == [0.2, 0.5]
    for row in rows:
        before, after = row["imbalance"]
        assert before == pytest.approx(row["skew"], abs=0.01) and after <= 0.01
        # the first of two cells gives away what it has too much
        assert row["moved"] == pytest.approx(200 * row["skew"], abs=3) and row["gaussians"] == 400
        for name in ("median", "least", "slowest", "mean"):
            assert len(row[name]) == 2 and min(row[name]) > 0
        assert all(slow >= mean for slow, mean in zip(row["slowest"], row["mean"]))
        assert 0 < row["balanced_check_share"] < row["repartition_share"] < 1
        assert row["repartition"][0] <= row["repartition"][1]
    assert done.stdout.count("| 50% |") == 3
