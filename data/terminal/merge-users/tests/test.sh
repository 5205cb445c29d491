#!/bin/bash
# -I: no module of the working folder can stand in for one of the library
if python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
