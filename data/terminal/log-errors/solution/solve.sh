#!/bin/bash
set -e
cd /app
echo service,errors > errors.csv
cat logs/*.log | awk '$2 == "ERROR" { gsub(/[][]/, "", $3); n[$3]++ } END { for (s in n) print s "," n[s] }' |
  sort -t, -k2,2nr -k1,1 >> errors.csv
