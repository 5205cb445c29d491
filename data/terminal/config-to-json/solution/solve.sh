#!/bin/bash
set -e
cd /app
python3 - <<'END'
import configparser, json
ini = configparser.ConfigParser()
ini.read("service.ini")

def value(text):
    if text.lower() in ("yes", "true", "no", "false"):
        return text.lower() in ("yes", "true")
    if "," in text:
        return [t.strip() for t in text.split(",")]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

json.dump({s.lower(): {k: value(v) for k, v in ini[s].items()} for s in ini.sections()}, open("service.json", "w"))
END
