package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	memoryExitCode = 3
	memoryInterval = 10 * time.Millisecond
)

// watchMemory exits if more memory than the limit is used: a template can allocate any amount.
func watchMemory(limit int64) {
	debug.SetMemoryLimit(limit * 9 / 10)
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for range time.Tick(memoryInterval) {
		metrics.Read(samples)
		if samples[0].Value.Uint64()-samples[1].Value.Uint64() > uint64(limit) {
			os.Exit(memoryExitCode)
		}
	}
}
