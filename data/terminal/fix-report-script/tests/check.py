from collections import defaultdict
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

data = Path("/app/sales.csv").read_bytes()
assert sha256(data).hexdigest() == "84ae68360f8b19f16b6042c21ae8494f1da241d39ccfb02e7c0d7b6fd593d426", "sales.csv was changed"
revenue = defaultdict(Decimal)
for row in data.decode().splitlines()[1:]:
    _, region, units, price = row.split(",")
    revenue[region] += int(units) * Decimal(price)
expected = [f"{region} {total:.2f}" for region, total in sorted(revenue.items())]
assert Path("/app/revenue.txt").read_text().splitlines() == expected
script = Path("/app/report.sh").read_text()
assert "+3" not in script and "$3 + $4" not in script, "report.sh still has its mistakes"
