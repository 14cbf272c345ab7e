// Pause holds a pod's namespaces open: it does nothing until it is told to end.
//
// As the first process of a shared process namespace it is also the parent of every orphan in the pod, and waits for
// them, so that none stays behind as a zombie.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// One signal may stand for several children.
func reap() {
	for {
		child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if child <= 0 || err != nil {
			return
		}
	}
}
