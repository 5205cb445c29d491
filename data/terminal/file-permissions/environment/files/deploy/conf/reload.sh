#!/bin/bash
echo reload
