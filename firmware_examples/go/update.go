package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	partBytes    = 128 << 10 // of one request, and the most that a reset makes it fetch again
	listBytesMax = 4 << 20
	triesMax     = 3 // trials of one image; then it is refused until another manifest comes
	httpWait     = 30 * time.Second
	deliveryTick = 100 * time.Millisecond
)

// errGone says that the gateway has no such artefact, or has another one now.
var errGone = errors.New("the gateway does not offer it")

// ArtefactClient asks for artefacts of the gateway, over HTTP.
type ArtefactClient struct {
	url, user, password string
	client              http.Client
}

// NewArtefactClient returns a client that sends no password over HTTP where MQTT has TLS.
func NewArtefactClient(settings Settings) *ArtefactClient {
	client := &ArtefactClient{url: strings.TrimSuffix(settings.UpdateURL, "/")}
	client.client = http.Client{Timeout: httpWait, Transport: &http.Transport{TLSClientConfig: settings.TLS}}
	if strings.HasPrefix(client.url, "https:") || settings.TLS == nil {
		client.user, client.password = settings.Device, settings.Password
	}
	return client
}

// Get returns the content of a path; errGone if the gateway does not have it.
func (c *ArtefactClient) Get(path string, fields map[string]string, most int64, wanted int) ([]byte, error) {
	status, content, err := c.ask("GET", path, fields, nil, most)
	if err == nil && status == http.StatusRequestedRangeNotSatisfiable && wanted == http.StatusPartialContent {
		return nil, nil
	}
	if err == nil && status != wanted {
		err = errGone
	}
	return content, err
}

// Report reports a state; one about an artefact that the gateway no longer has is dropped.
func (c *ArtefactClient) Report(state StoredUpdate) error {
	body, err := json.Marshal(map[string]string{"state": state.State, "reason": state.Reason, "sha256": state.SHA256})
	if err != nil {
		return err
	}
	_, _, err = c.ask("POST", fmt.Sprintf("/artefacts/%s/%s/report", firmwareName, state.Version), nil, body, 1<<16)
	return err
}

func (c *ArtefactClient) ask(method, path string, fields map[string]string, body []byte, most int64) (int, []byte, error) {
	request, err := http.NewRequest(method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	for name, value := range fields {
		request.Header.Set(name, value)
	}
	if c.password != "" {
		request.SetBasicAuth(c.user, c.password)
	}
	answer, err := c.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	switch status := answer.StatusCode; {
	case status == 401 || status == 403 || status == 408 || status == 429 || status >= 500:
		return 0, nil, fmt.Errorf("the gateway answers %d", status)
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	if err == nil && int64(len(content)) > most {
		err = errors.New("the answer is too long")
	}
	return answer.StatusCode, content, err
}

// StoredUpdate is the state of the update, on disk.
type StoredUpdate struct {
	State    string `json:"state"`
	Reported string `json:"reported"`
	Reason   string `json:"reason"`
	Version  string `json:"version"`
	Sequence int64  `json:"sequence"`
	Size     int64  `json:"size"`
	SHA256   string `json:"sha256"`
	Envelope string `json:"envelope"` // SHA-256 of the signed manifest
	Done     int64  `json:"done"`     // bytes of the image that are in the slot
	Tries    int    `json:"tries"`
	Own      int64  `json:"own"` // sequence of the program that wrote this
}

// SlotUpdater updates the program in a goroutine of its own; it ends the process for a restart.
type SlotUpdater struct {
	settings      Settings
	spool         *ReadingSpool
	clock         *GatewayClock
	client        *ArtefactClient
	record, image string
	lookAt        time.Time
	state         StoredUpdate
}

// NewSlotUpdater reads the state of the update.
func NewSlotUpdater(settings Settings, spool *ReadingSpool, clock *GatewayClock) (*SlotUpdater, error) {
	u := &SlotUpdater{
		settings: settings, spool: spool, clock: clock, client: NewArtefactClient(settings),
		record: filepath.Join(settings.Slots, "update.json"),
		image:  filepath.Join(settings.Slots, fmt.Sprintf("slot%d", 1-settings.Slot)),
	}
	content, err := os.ReadFile(u.record)
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &u.state)
	}
	if u.state.Own != firmwareSequence && u.state.State == "rolled-back" {
		u.state.Tries = 0 // what another version has refused, this one may take
	}
	return u, err
}

// Run updates for ever.
func (u *SlotUpdater) Run() {
	log("firmware: %s %s", firmwareName, firmwareVersion)
	err := u.judgeStart()
	for !u.spool.Delivered() {
		time.Sleep(deliveryTick)
	}
	for retry := retryMin; ; {
		var why Refused
		if errors.As(err, &why) {
			err = u.endTry(string(why))
		}
		if err != nil {
			log("update: %v", err)
			time.Sleep(retry/2 + time.Duration(rand.Int63n(int64(retry/2))))
			retry = min(retry*2, retryMax)
		}
		var wait time.Duration
		if wait, err = u.step(); err == nil {
			retry = retryMin
			time.Sleep(wait)
		}
	}
}

// --- state ---------------------------------------------------------------------------------------------------------

func (u *SlotUpdater) save(state string) error {
	u.state.State, u.state.Own = state, firmwareSequence
	content, err := json.Marshal(u.state)
	if err != nil {
		return err
	}
	return writeDurably(u.record, content)
}

func (u *SlotUpdater) lookLater() {
	u.lookAt = time.Now().Add(u.settings.UpdateEvery/2 + time.Duration(rand.Int63n(int64(u.settings.UpdateEvery/2))))
}

// endTry stays with the version that runs; the same manifest is tried again a few times, unless that cannot help.
func (u *SlotUpdater) endTry(reason string) error {
	switch helps := reason == "not-healthy" || reason == "restarted" || reason == "cannot-install"; {
	case helps || u.state.State == "downloading":
		u.state.Tries++
	default:
		u.state.Tries = triesMax
	}
	u.state.Reported, u.state.Reason, u.state.Done = "", reason, 0
	log("the new version is refused, or was rolled back: %s", reason)
	u.lookLater()
	return u.save("rolled-back")
}

// --- the trial -----------------------------------------------------------------------------------------------------

// judgeStart finds out what became of a version that was installed before this start, and tries the one that runs.
func (u *SlotUpdater) judgeStart() error {
	record, err := ReadBoot(u.settings.Slots)
	if err != nil {
		return err
	}
	isTarget := u.state.Sequence == firmwareSequence
	isInstalled := u.state.State == "installed" || u.state.State == "started"
	switch {
	case record.kept != u.settings.Slot:
		return u.tryOut(isInstalled, isTarget)
	case isInstalled && isTarget:
		return u.save("healthy") // a reset between the confirmation and its record
	case u.state.State == "started":
		// Also where the boot loader could not record the end of the trial.
		if err := (BootRecord{u.settings.Slot, noSlot, 0}).Write(u.settings.Slots); err != nil {
			return err
		}
		if u.state.Reason == "" {
			u.state.Reason = "restarted"
		}
		return u.endTry(u.state.Reason)
	case u.state.Sequence <= firmwareSequence && (isInstalled || u.state.State == "downloading" || u.state.State == "verified"):
		return u.save("") // a newer version was installed by hand
	}
	return nil
}

// tryOut keeps the running version once it has delivered a reading of its own; else it goes back.
func (u *SlotUpdater) tryOut(isKnown, isTarget bool) error {
	u.state.Reason = ""
	if isKnown {
		if err := u.save("started"); err != nil {
			return err
		}
	}
	switch {
	case !strings.Contains(makerKeys, "PUBLIC KEY"):
		u.state.Reason = "no-key" // it could never be updated again
	case isKnown && !isTarget:
		u.state.Reason = "wrong-sequence" // kept, it would be offered again and again
	default:
		for end := time.Now().Add(u.settings.Trial); !u.spool.Delivered() && time.Now().Before(end); {
			time.Sleep(deliveryTick)
		}
		if !u.spool.Delivered() {
			u.state.Reason = "not-healthy"
		}
	}
	if u.state.Reason != "" {
		log("going back to the version before")
		if isKnown {
			if err := u.save("started"); err != nil {
				return err
			}
		}
		return u.restart(BootRecord{1 - u.settings.Slot, noSlot, 0})
	}
	if err := (BootRecord{u.settings.Slot, noSlot, 0}).Write(u.settings.Slots); err != nil {
		return err
	}
	log("the new version is healthy")
	if isKnown {
		return u.save("healthy")
	}
	return nil
}

func (u *SlotUpdater) restart(record BootRecord) error {
	if err := record.Write(u.settings.Slots); err != nil {
		return err
	}
	os.Exit(exitRestart)
	return nil
}

// --- steps ---------------------------------------------------------------------------------------------------------

// step does what is due; it returns the time to wait.
func (u *SlotUpdater) step() (time.Duration, error) {
	switch state := u.state.State; {
	case state != u.state.Reported && state != "" && state != "started":
		if err := u.client.Report(u.state); err != nil {
			return 0, err
		}
		u.state.Reported = state
		return 0, u.save(state)
	case state == "downloading":
		return 0, u.download()
	case state == "verified":
		return 0, u.save("installed")
	case state == "installed":
		if err := (BootRecord{u.settings.Slot, 1 - u.settings.Slot, 0}).Write(u.settings.Slots); err != nil {
			return 0, err
		}
		// Behind the mark of the boot loader: a reset in between only repeats the mark.
		if err := u.save("started"); err != nil {
			return 0, err
		}
		log("starting the new version")
		os.Exit(exitRestart)
	case !time.Now().Before(u.lookAt):
		return 0, u.look()
	}
	return min(time.Second, time.Until(u.lookAt)), nil
}

type listedArtefact struct {
	Name, Version, Kind string
	Sequence            int64
	Boards              []string
	FromVersions        []string `json:"from_versions"`
}

func (a listedArtefact) fits() bool {
	return a.Name == firmwareName && a.Kind == "firmware" && versionPattern.MatchString(a.Version) &&
		(a.Boards == nil || contains(a.Boards, firmwareBoard)) &&
		(len(a.FromVersions) == 0 || contains(a.FromVersions, firmwareVersion))
}

// look looks for a later version at the gateway, and verifies its manifest.
func (u *SlotUpdater) look() error {
	content, err := u.client.Get("/artefacts", nil, listBytesMax, http.StatusOK)
	var listed struct{ Artefacts []listedArtefact }
	if err == nil {
		if unread := json.Unmarshal(content, &listed); unread != nil {
			log("update: the list cannot be read: %v", unread)
			u.lookLater()
			return nil
		}
	}
	latest := listedArtefact{Sequence: firmwareSequence}
	for _, each := range listed.Artefacts {
		if each.fits() && each.Sequence > latest.Sequence {
			latest = each
		}
	}
	if err == nil && latest.Version != "" {
		content, err = u.client.Get(fmt.Sprintf("/artefacts/%s/%s/manifest", firmwareName, latest.Version), nil, envelopeBytesMax+1, http.StatusOK)
	}
	switch {
	case errors.Is(err, errGone):
		log("update: the list or the manifest cannot be read: %v", err)
		u.lookLater()
		return nil
	case err != nil:
		return err
	case latest.Version == "":
		u.lookLater()
		return nil
	}
	return u.takeManifest(latest.Version, content)
}

func (u *SlotUpdater) takeManifest(version string, content []byte) error {
	digest, tries := sha256.Sum256(content), 0
	envelope := hex.EncodeToString(digest[:])
	if envelope == u.state.Envelope {
		tries = u.state.Tries
		if u.state.State == "rolled-back" && tries >= triesMax {
			u.lookLater() // the same as was refused
			return nil
		}
	}
	now, known := u.clock.Now()
	if !known {
		now = 0
	}
	manifest, err := OpenManifest(content, now)
	if err == nil && manifest.Version != version {
		err = Refused("forged")
	}
	if err == Refused("not-yet-valid") {
		log("a new version is not valid yet")
		u.lookLater()
		return nil
	}
	u.state = StoredUpdate{Version: version, Envelope: envelope, Tries: tries}
	if err != nil {
		return err
	}
	u.state.Sequence, u.state.Size, u.state.SHA256 = manifest.Sequence, manifest.Size, manifest.SHA256
	log("a new version: downloading")
	return u.save("downloading")
}

// download fetches the next part of the image, and verifies the whole one.
func (u *SlotUpdater) download() error {
	done, stop := u.state.Done, u.state.Size
	if done >= u.state.Size {
		return u.verifyImage()
	}
	if stop > done+partBytes {
		stop = done + partBytes
	}
	fields := map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", done, stop-1), "If-Range": `"` + u.state.SHA256 + `"`}
	path := fmt.Sprintf("/artefacts/%s/%s/image", firmwareName, u.state.Version)
	content, err := u.client.Get(path, fields, partBytes, http.StatusPartialContent)
	switch {
	case errors.Is(err, errGone):
		log("the new version is not offered any more")
		u.lookLater()
		return u.save("")
	case err != nil:
		return err
	case int64(len(content)) != stop-done:
		return Refused("truncated")
	}
	if err := u.storePart(content, done); err != nil {
		return err
	}
	u.state.Done = stop
	return u.save("downloading")
}

func (u *SlotUpdater) storePart(content []byte, at int64) error {
	flags := os.O_WRONLY
	if at == 0 {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	file, err := os.OpenFile(u.image, flags, 0o755)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteAt(content, at); err != nil {
		return err
	}
	return file.Sync()
}

// verifyImage reads the stored image once more: so its disk is verified too.
func (u *SlotUpdater) verifyImage() error {
	file, err := os.Open(u.image)
	if err != nil {
		return err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return err
	}
	if hex.EncodeToString(digest.Sum(nil)) != u.state.SHA256 {
		return Refused("forged")
	}
	log("the new version is verified")
	return u.save("verified")
}
