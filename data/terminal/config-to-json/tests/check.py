import json
from pathlib import Path

expected = {
    "server": {"host": "example.org", "port": 8080, "tls": True, "versions": ["1.2", "1.3"]},
    "limits": {"rate": 2.5, "burst": 40, "strict": False, "message": "slow down"},
    "paths": {"root": "/srv/www", "skip": ["tmp", "cache", "old"]},
}
found = json.loads(Path("/app/service.json").read_text())
assert json.dumps({k.lower(): v for k, v in found.items()}, sort_keys=True) == json.dumps(expected, sort_keys=True)
