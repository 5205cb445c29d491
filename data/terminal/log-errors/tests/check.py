from collections import Counter
from pathlib import Path

counts = Counter()
for path in Path("/app/logs").glob("*.log"):
    for line in path.read_text().splitlines():
        _, level, service, _ = line.split(maxsplit=3)
        counts[service.strip("[]")] += level == "ERROR"
assert sum(counts.values()) == 31, "the logs were changed"
rows = sorted(counts.items(), key=lambda x: (-x[1], x[0]))
expected = ["service,errors"] + [f"{s},{n}" for s, n in rows if n]
assert Path("/app/errors.csv").read_text().split() == expected
