#!/bin/bash
# Revenue (units times price) of each region, two decimals, sorted by region.
set -e
tail -n +3 "$1" | awk -F, '{ total[$2] += $3 + $4 } END { for (r in total) printf "%s %.2f\n", r, total[r] }' | sort -r
