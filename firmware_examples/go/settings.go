package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	clockSetAfter = 1700000000 // an earlier time means that a clock was never set (s since 1970)
	clockAsk      = time.Hour
	clockWait     = 5 * time.Second
)

// Settings come from variables of the environment.
type Settings struct {
	Host, Device, Password, Spool, TimeURL string
	UpdateURL, Slots                       string
	Port, IntervalMS, Slot                 int
	SpoolReadings                          uint32
	UpdateEvery, Trial                     time.Duration
	TLS                                    *tls.Config // trusts the gateway's authority and no other; nil without TLS
}

// SettingsFromEnvironment reads the settings.
func SettingsFromEnvironment() (Settings, error) {
	text := func(name, otherwise string) string {
		if value := os.Getenv(name); value != "" {
			return value
		}
		return otherwise
	}
	var wrong error
	number := func(name, otherwise string, most int) int {
		value, err := strconv.Atoi(text(name, otherwise))
		if err != nil || value < 1 || value > most {
			wrong = fmt.Errorf("%s=%s has to be a number from 1 to %d", name, os.Getenv(name), most)
		}
		return value
	}
	config, err := tlsOfEnvironment()
	if err != nil {
		return Settings{}, err
	}
	port := "1883"
	if config != nil {
		port = "8883"
	}
	settings := Settings{
		Host: text("WAYPOST_HOST", "127.0.0.1"), Device: text("WAYPOST_DEVICE", "pump7"),
		Password: os.Getenv("WAYPOST_PASSWORD"), Spool: text("WAYPOST_SPOOL", "readings.spool"),
		TimeURL: os.Getenv("WAYPOST_TIME_URL"), Port: number("WAYPOST_PORT", port, 65535),
		IntervalMS:    number("WAYPOST_INTERVAL_MS", "1000", intervalMax),
		SpoolReadings: uint32(number("WAYPOST_SPOOL_READINGS", "1024", 1<<20)), TLS: config,
	}
	settings.UpdateURL, settings.Slots = os.Getenv("WAYPOST_UPDATE_URL"), os.Getenv("WAYPOST_SLOTS")
	settings.UpdateEvery = time.Duration(number("WAYPOST_UPDATE_S", "3600", 86400)) * time.Second
	settings.Trial = time.Duration(number("WAYPOST_TRIAL_S", "600", 86400)) * time.Second
	if settings.UpdateURL != "" && settings.Slots == "" {
		return settings, errors.New("WAYPOST_UPDATE_URL needs the boot loader: start `waypost-device boot FOLDER`")
	}
	if os.Getenv("WAYPOST_SLOT") == "1" {
		settings.Slot = 1
	}
	return settings, wrong
}

func tlsOfEnvironment() (*tls.Config, error) {
	ca, certificate, key := os.Getenv("WAYPOST_CA"), os.Getenv("WAYPOST_CERTIFICATE"), os.Getenv("WAYPOST_KEY")
	if ca == "" && certificate != "" {
		return nil, errors.New("WAYPOST_CERTIFICATE needs TLS: set WAYPOST_CA too")
	}
	if ca == "" {
		return nil, nil
	}
	content, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("WAYPOST_CA: %w", err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("WAYPOST_CA: %s has no certificate", ca)
	}
	if certificate != "" {
		if key == "" {
			key = certificate
		}
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("WAYPOST_CERTIFICATE and WAYPOST_KEY: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// GatewayClock is the time of the gateway: the field Date of an HTTP answer. Without a URL it is that of this machine.
type GatewayClock struct {
	url    string
	client http.Client
	mutex  sync.Mutex
	at     time.Time // of the gateway
	asked  time.Time // by the monotonic clock of this machine
}

// NewGatewayClock returns a clock that has not asked yet.
func NewGatewayClock(url string, config *tls.Config) *GatewayClock {
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	return &GatewayClock{url: strings.TrimSuffix(url, "/"), client: http.Client{Timeout: clockWait, Transport: transport}}
}

// Ask asks the gateway, at most once an hour. A failure is no error: readings have no time until it answers.
func (c *GatewayClock) Ask() {
	c.mutex.Lock()
	due := c.url != "" && (c.asked.IsZero() || time.Since(c.asked) >= clockAsk)
	c.mutex.Unlock()
	if !due {
		return
	}
	answer, err := c.client.Get(c.url + "/healthz")
	if err != nil {
		log("no time from %s: %v", c.url, err)
		return
	}
	answer.Body.Close()
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil || at.Unix() <= clockSetAfter {
		log("no time from %s", c.url)
		return
	}
	c.mutex.Lock()
	c.at, c.asked = at, time.Now()
	c.mutex.Unlock()
}

// Now returns seconds since 1970, and whether the time is known.
func (c *GatewayClock) Now() (int64, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.url == "" {
		now := time.Now().Unix()
		return now, now > clockSetAfter
	}
	if c.asked.IsZero() {
		return 0, false
	}
	return c.at.Add(time.Since(c.asked)).Unix(), true
}
