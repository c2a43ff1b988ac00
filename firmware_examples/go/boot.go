package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Boot loader: it starts the program in one of two slots, and goes back from one that does not confirm.
// `waypost-device boot FOLDER`. FOLDER has the programs `slot0` and `slot1`, and the file `boot`: "kept trial starts".
const (
	exitRestart     = 75 // exit code of a program that is to be started again at once
	startsMax       = 3  // starts of a program on trial
	bootPause       = time.Second
	watchdogDefault = 120 // a program that writes nothing to its standard output for so long is killed (s)
	noSlot          = -1
)

// BootRecord is the content of the file `boot`.
type BootRecord struct{ kept, trial, starts int }

func bootPath(folder string) string { return filepath.Join(folder, "boot") }

// ReadBoot reads the file; the first start ever has none.
func ReadBoot(folder string) (BootRecord, error) {
	content, err := os.ReadFile(bootPath(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return BootRecord{0, noSlot, 0}, nil
	}
	if err != nil {
		return BootRecord{}, err
	}
	var kept, starts int
	var trial string
	if _, err := fmt.Sscan(string(content), &kept, &trial, &starts); err != nil {
		return BootRecord{}, fmt.Errorf("%s: %w", bootPath(folder), err)
	}
	slot, err := strconv.Atoi(trial)
	if err != nil {
		slot = noSlot
	}
	return BootRecord{kept, slot, starts}, nil
}

// Write replaces the file; it is on disk when this returns.
func (r BootRecord) Write(folder string) error {
	trial := "-"
	if r.trial != noSlot {
		trial = strconv.Itoa(r.trial)
	}
	return writeDurably(bootPath(folder), []byte(fmt.Sprintf("%d %s %d\n", r.kept, trial, r.starts)))
}

// writeDurably replaces a file: after a power cut it is the old or the new one.
func writeDurably(path string, content []byte) error {
	made, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = made.Write(content)
	if err == nil {
		err = made.Sync()
	}
	if closed := made.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// chooseSlot returns the slot to start now, and whether it is on trial; its start is on disk.
func chooseSlot(folder string) (slot int, isTrial bool, err error) {
	record, err := ReadBoot(folder)
	if err != nil || record.trial == noSlot {
		return record.kept, false, err
	}
	next := BootRecord{record.kept, record.trial, record.starts + 1}
	if record.starts >= startsMax {
		fmt.Fprintf(os.Stderr, "boot: no confirmation in %d starts, back to slot %d\n", startsMax, record.kept)
		next = BootRecord{record.kept, noSlot, 0}
	}
	if err := next.Write(folder); err != nil { // such as a full disk: the kept program runs
		fmt.Fprintf(os.Stderr, "boot: no trial now: %v\n", err)
		return record.kept, false, nil
	}
	if next.trial == noSlot {
		return record.kept, false, nil
	}
	return record.trial, true, nil
}

// bootFrom starts programs until one is stopped; it returns the exit code.
func bootFrom(folder string) int {
	watchdog, err := strconv.Atoi(os.Getenv("WAYPOST_WATCHDOG_S"))
	if err != nil {
		watchdog = watchdogDefault
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	for {
		slot, isTrial, err := chooseSlot(folder)
		if err != nil {
			fmt.Fprintf(os.Stderr, "boot: %v\n", err)
			return 1
		}
		code, stopped := runSlot(folder, slot, time.Duration(watchdog)*time.Second, signals)
		if stopped || (code >= 0 && code != exitRestart && (code == 0 || !isTrial)) {
			if code < 0 {
				code = 0
			}
			return code
		}
		if code != exitRestart {
			time.Sleep(bootPause)
		}
	}
}

// runSlot runs the program of a slot; it returns its exit code, -1 if it was killed or is no program.
func runSlot(folder string, slot int, watchdog time.Duration, signals <-chan os.Signal) (code int, stopped bool) {
	command := exec.Command(filepath.Join(folder, fmt.Sprintf("slot%d", slot)))
	command.Env = append(os.Environ(), "WAYPOST_SLOTS="+folder, fmt.Sprintf("WAYPOST_SLOT=%d", slot))
	command.Stderr = os.Stderr
	fed, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "boot: %v\n", err)
		return -1, false
	}
	var asked atomic.Bool
	ended := make(chan struct{})
	go func() {
		select {
		case received := <-signals:
			asked.Store(true)
			command.Process.Signal(received)
		case <-ended:
		}
	}()
	timer := time.AfterFunc(watchdog, func() { command.Process.Kill() })
	for buffer := make([]byte, 64); ; timer.Reset(watchdog) {
		if _, err := fed.Read(buffer); err == io.EOF || err != nil {
			break
		}
	}
	command.Wait()
	timer.Stop()
	close(ended)
	return command.ProcessState.ExitCode(), asked.Load()
}

// feedWatchdog tells the boot loader that the program is alive.
func feedWatchdog() {
	for ; ; time.Sleep(time.Second) {
		os.Stdout.WriteString(".")
	}
}
