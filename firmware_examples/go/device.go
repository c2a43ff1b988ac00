// Device that publishes over MQTT 3.1.1 at QoS 1, with Eclipse Paho. README.md has the rest.
package main

import (
	crypto "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

const (
	window      = 8 // readings in flight: sent and not acknowledged
	keepAlive   = 30 * time.Second
	answerWait  = 10 * time.Second
	intervalMin = 10
	intervalMax = 86400000
	retryMin    = 250 * time.Millisecond
	retryMax    = 8 * time.Second
	idleWait    = 50 * time.Millisecond // longest wait before new readings are looked for
)

func log(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, values...))
}

// Device measures into the spool, sends from it and obeys commands.
type Device struct {
	settings Settings
	spool    *ReadingSpool
	clock    *GatewayClock
	boot     string
	stopped  chan struct{}
	changed  chan struct{} // a new interval
	failed   chan error
	stopOnce sync.Once
	mutex    sync.Mutex
	interval int // ms
}

// Stop ends measuring; Run returns once every reading is acknowledged.
func (d *Device) Stop() { d.stopOnce.Do(func() { close(d.stopped) }) }

func (d *Device) stopping() bool {
	select {
	case <-d.stopped:
		return true
	default:
		return false
	}
}

// measure stores one reading. Read your own sensors here.
func (d *Device) measure() error {
	reading := map[string]any{"device": d.settings.Device, "boot": d.boot, "seq": d.spool.Next()}
	if at, known := d.clock.Now(); known {
		reading["at"] = at
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if load, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64); err == nil {
			reading["load_1m"] = load
		}
	}
	content, err := json.Marshal(reading)
	if err != nil {
		return err
	}
	return d.spool.Add(content)
}

func (d *Device) measureUntilStopped() {
	due := time.Now()
	for !d.stopping() {
		if err := d.measure(); err != nil {
			d.failed <- fmt.Errorf("cannot store reading %d: %w; check the disk", d.spool.Next(), err)
			return
		}
		measured := time.Now()
		if due = due.Add(d.intervalNow()); due.Before(measured) {
			due = measured // late: no burst
		}
		for waiting := true; waiting; {
			select {
			case <-time.After(time.Until(due)):
				waiting = false
			case <-d.changed:
				due = measured.Add(d.intervalNow())
			case <-d.stopped:
				waiting = false
			}
		}
	}
}

func (d *Device) intervalNow() time.Duration {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return time.Duration(d.interval) * time.Millisecond
}

// Run connects, publishes and connects again until the device was stopped and has delivered everything.
func (d *Device) Run() error {
	go d.measureUntilStopped()
	retry := retryMin
	for {
		d.clock.Ask()
		before := d.spool.Acknowledged()
		err := d.serve()
		var failure *diskError
		if errors.As(err, &failure) {
			return failure.cause
		}
		if err == nil {
			return nil
		}
		log("connection to %s:%d: %v", d.settings.Host, d.settings.Port, err)
		if d.spool.Acknowledged() != before {
			retry = retryMin
		}
		// Jitter, so that a thousand devices do not return at once: half of the delay to all of it.
		wait := time.After(retry/2 + time.Duration(rand.Int63n(int64(retry/2))))
		retry = min(retry*2, retryMax)
		select {
		case <-wait:
		case cause := <-d.failed:
			return cause
		}
		if d.stopping() && d.spool.Empty() {
			return nil
		}
	}
}

type diskError struct{ cause error }

func (e *diskError) Error() string { return e.cause.Error() }

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

type sentReading struct {
	number uint32
	token  mqtt.Token
}

// serve runs one connection, with a client of its own: the spool has the readings, and Paho keeps nothing.
// It returns nil when the device is finished.
func (d *Device) serve() error {
	lost := make(chan error, 1)
	client := mqtt.NewClient(d.options(lost))
	if token := client.Connect(); !token.WaitTimeout(answerWait) || token.Error() != nil {
		client.Disconnect(0)
		if token.Error() != nil {
			return fmt.Errorf("%w%s", token.Error(), nextStep(token.Error()))
		}
		return errors.New("no answer")
	}
	defer client.Disconnect(0)
	log("connected")
	defer log("disconnected")
	client.Subscribe("command/"+d.settings.Device+"/#", 1, func(client mqtt.Client, message mqtt.Message) {
		go d.answer(client, message)
	})
	client.Publish("status/"+d.settings.Device, 1, true, "online")
	return d.deliver(client, lost)
}

// deliver sends readings and takes their acknowledgements, which come in the same order.
func (d *Device) deliver(client mqtt.Client, lost <-chan error) error {
	sending := d.spool.Acknowledged()
	var inFlight []sentReading
	for {
		if oldest := d.spool.Acknowledged(); sending < oldest {
			sending = oldest
		}
		for ; sending < d.spool.Next() && len(inFlight) < window; sending++ {
			content := d.spool.Get(sending)
			if content == nil {
				d.spool.Acknowledge(sending) // acknowledged before an earlier one, or damaged on the disk
				continue
			}
			inFlight = append(inFlight, sentReading{sending, client.Publish("plant/"+d.settings.Device, 1, false, content)})
		}
		if d.stopping() && d.spool.Empty() {
			client.Publish("status/"+d.settings.Device, 1, true, "offline").WaitTimeout(answerWait)
			client.Disconnect(250)
			return nil
		}
		var answered <-chan struct{}
		if len(inFlight) > 0 {
			answered = inFlight[0].token.Done()
		}
		select {
		case <-answered:
			if err := inFlight[0].token.Error(); err != nil {
				return err
			}
			d.spool.Acknowledge(inFlight[0].number)
			inFlight = inFlight[1:]
		case err := <-lost:
			return err
		case err := <-d.failed:
			return &diskError{err}
		case <-time.After(idleWait):
		}
	}
}

func (d *Device) options(lost chan<- error) *mqtt.ClientOptions {
	settings, scheme := d.settings, "tcp"
	options := mqtt.NewClientOptions()
	if settings.TLS != nil {
		scheme = "ssl"
		options.SetTLSConfig(settings.TLS)
	}
	options.AddBroker(fmt.Sprintf("%s://%s:%d", scheme, settings.Host, settings.Port))
	options.SetClientID(settings.Device).SetCleanSession(false).SetProtocolVersion(4)
	options.SetKeepAlive(keepAlive).SetPingTimeout(answerWait).SetConnectTimeout(answerWait).SetWriteTimeout(answerWait)
	options.SetAutoReconnect(false).SetConnectRetry(false).SetAutoAckDisabled(true)
	options.SetWill("status/"+settings.Device, "offline", 1, true)
	if settings.Password != "" {
		options.SetUsername(settings.Device).SetPassword(settings.Password)
	}
	options.SetConnectionLostHandler(func(_ mqtt.Client, err error) { lost <- err })
	return options
}

func nextStep(err error) string {
	text := strings.ToLower(err.Error())
	if strings.Contains(text, "user name") || strings.Contains(text, "not authorized") {
		return "; wrong user or password: `waypost user rotate` at the gateway makes a new one"
	}
	return ""
}

// answer obeys a command, answers it, and acknowledges it last: after a reset in between it comes again.
func (d *Device) answer(client mqtt.Client, message mqtt.Message) {
	answer, stop := d.obey(message.Payload())
	body, err := json.Marshal(answer)
	if err == nil {
		token := client.Publish("command-response/"+d.settings.Device, 1, false, body)
		if token.WaitTimeout(answerWait) && token.Error() == nil {
			message.Ack()
		}
	}
	if stop {
		d.Stop()
	}
}

func (d *Device) obey(payload []byte) (answer map[string]any, stop bool) {
	var command map[string]json.RawMessage
	answer = map[string]any{}
	refuse := func(text string) (map[string]any, bool) {
		log("command refused: %s", text)
		answer["status"], answer["error"] = 400, text
		return answer, false
	}
	if err := json.Unmarshal(payload, &command); err != nil || command == nil {
		return refuse("not a JSON object")
	}
	if id, given := command["id"]; given {
		answer["id"] = id
	}
	text, interval := command["interval_ms"]
	value, stopGiven := command["stop"]
	if !interval && !stopGiven {
		return refuse("unknown command")
	}
	if interval {
		number, err := strconv.Atoi(string(text))
		if err != nil || number < intervalMin || number > intervalMax {
			return refuse(fmt.Sprintf("interval_ms has to be %d to %d", intervalMin, intervalMax))
		}
		d.setInterval(number)
	}
	answer["status"], answer["interval_ms"] = 200, d.intervalNow().Milliseconds()
	log("command obeyed: %s", payload)
	return answer, string(value) == "true"
}

func (d *Device) setInterval(interval int) {
	d.mutex.Lock()
	d.interval = interval
	d.mutex.Unlock()
	select {
	case d.changed <- struct{}{}:
	case <-d.stopped:
	}
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "boot" {
		os.Exit(bootFrom(os.Args[2]))
	}
	settings, err := SettingsFromEnvironment()
	if err != nil {
		log("%v", err)
		os.Exit(2)
	}
	spool, err := OpenSpool(settings.Spool, settings.SpoolReadings)
	if err != nil {
		log("%v", err)
		os.Exit(2)
	}
	boot := make([]byte, 4)
	if _, err := crypto.Read(boot); err != nil {
		log("no random numbers: %v", err)
		os.Exit(2)
	}
	device := &Device{
		settings: settings, spool: spool, clock: NewGatewayClock(settings.TimeURL, settings.TLS),
		boot: hex.EncodeToString(boot), interval: settings.IntervalMS,
		stopped: make(chan struct{}), changed: make(chan struct{}), failed: make(chan error, 1),
	}
	if settings.Slots != "" {
		go feedWatchdog()
	}
	if settings.UpdateURL != "" {
		updater, err := NewSlotUpdater(settings, spool, device.clock)
		if err != nil {
			log("%v", err)
			os.Exit(2)
		}
		go updater.Run()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		device.Stop()
	}()
	if err := device.Run(); err != nil {
		log("%v", err)
		os.Exit(1)
	}
	log("stopped: every reading below %d is acknowledged, %d were dropped", spool.Next(), spool.dropped)
}
