package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"sync"
)

const (
	slotBytes       = 512
	headerBytes     = 16
	spoolFormat     = 1
	contentBytesMax = slotBytes - headerBytes
)

// ReadingSpool is a ring of unacknowledged readings in a file: it survives a reset, keeps the order, and never grows.
// The format is the same in all examples: firmware_examples/README.md.
type ReadingSpool struct {
	mutex        sync.Mutex
	file         *os.File
	capacity     uint32
	next         uint32          // number of the next reading
	acknowledged uint32          // every reading below this number was acknowledged
	first        uint32          // first reading of this start
	delivered    bool            // a reading of this start was acknowledged: the sign of health of a new version
	ackedEarly   map[uint32]bool // acknowledged readings behind one that is not
	dropped      uint32          // readings that were overwritten before they were acknowledged, since the start
}

// OpenSpool opens or creates the file. The capacity (readings) counts only when it is created.
func OpenSpool(path string, capacity uint32) (*ReadingSpool, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := createSpool(path, capacity); err != nil {
			return nil, fmt.Errorf("the spool cannot be made: %w; check WAYPOST_SPOOL and the disk", err)
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; check WAYPOST_SPOOL", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 || info.Size()%slotBytes != 0 {
		return nil, fmt.Errorf("%s is not a spool; move it away, or set WAYPOST_SPOOL to another file", path)
	}
	spool := &ReadingSpool{file: file, capacity: uint32(info.Size() / slotBytes), ackedEarly: map[uint32]bool{}}
	for slot := uint32(0); slot < spool.capacity; slot++ {
		number, acknowledged, _, valid := spool.read(slot)
		if valid && number >= spool.next {
			spool.next = number + 1
		}
		if valid && acknowledged > spool.acknowledged {
			spool.acknowledged = acknowledged
		}
	}
	if spool.next-spool.acknowledged > spool.capacity {
		spool.acknowledged = spool.next - spool.capacity
	}
	spool.first = spool.next
	return spool, nil
}

// Next returns the number of the next reading.
func (s *ReadingSpool) Next() uint32 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.next
}

// Acknowledged returns the number below which every reading was acknowledged.
func (s *ReadingSpool) Acknowledged() uint32 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.acknowledged
}

// Empty tells whether every reading was acknowledged.
func (s *ReadingSpool) Empty() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.next == s.acknowledged
}

// Delivered tells whether a reading of this start was acknowledged.
func (s *ReadingSpool) Delivered() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.delivered
}

// Add stores a reading: on disk when it returns. When full, it drops the oldest. It has one caller.
func (s *ReadingSpool) Add(content []byte) error {
	if len(content) > contentBytesMax {
		return fmt.Errorf("a reading has %d bytes, and at most %d fit", len(content), contentBytesMax)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.next-s.acknowledged == s.capacity {
		s.acknowledged++
		s.dropped++
		s.advance()
	}
	slot := make([]byte, headerBytes+len(content))
	binary.LittleEndian.PutUint32(slot[4:], s.next)
	binary.LittleEndian.PutUint32(slot[8:], s.acknowledged)
	binary.LittleEndian.PutUint16(slot[12:], uint16(len(content)))
	binary.LittleEndian.PutUint16(slot[14:], spoolFormat)
	copy(slot[headerBytes:], content)
	binary.LittleEndian.PutUint32(slot, crc32.ChecksumIEEE(slot[4:]))
	if _, err := s.file.WriteAt(slot, int64(s.next%s.capacity)*slotBytes); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.next++
	return nil
}

// Get returns the content of a reading; nil if it was acknowledged or dropped, or is damaged.
func (s *ReadingSpool) Get(number uint32) []byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if number < s.acknowledged || number >= s.next || s.ackedEarly[number] {
		return nil
	}
	found, _, content, valid := s.read(number % s.capacity)
	if !valid || found != number {
		return nil
	}
	return content
}

// Acknowledge removes a reading.
func (s *ReadingSpool) Acknowledge(number uint32) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if number >= s.acknowledged && number < s.next {
		s.ackedEarly[number] = true
		s.delivered = s.delivered || number >= s.first
		s.advance()
	}
}

func (s *ReadingSpool) advance() {
	for s.ackedEarly[s.acknowledged] {
		delete(s.ackedEarly, s.acknowledged)
		s.acknowledged++
	}
}

func (s *ReadingSpool) read(slot uint32) (number, acknowledged uint32, content []byte, valid bool) {
	data := make([]byte, slotBytes)
	if _, err := s.file.ReadAt(data, int64(slot)*slotBytes); err != nil {
		return 0, 0, nil, false
	}
	number = binary.LittleEndian.Uint32(data[4:])
	end := headerBytes + int(binary.LittleEndian.Uint16(data[12:]))
	if binary.LittleEndian.Uint16(data[14:]) != spoolFormat || end > slotBytes || number%s.capacity != slot {
		return 0, 0, nil, false
	}
	if crc32.ChecksumIEEE(data[4:end]) != binary.LittleEndian.Uint32(data) {
		return 0, 0, nil, false
	}
	return number, binary.LittleEndian.Uint32(data[8:]), data[headerBytes:end], true
}

// createSpool creates the file with its whole size, so that a disk without space is noticed now.
func createSpool(path string, capacity uint32) error {
	if capacity < 1 {
		return errors.New("WAYPOST_SPOOL_READINGS has to be at least 1")
	}
	return writeDurably(path, make([]byte, slotBytes*int(capacity)))
}
