"""Settings of this device. Edit them on the board; on a PC each can also be a KEY=VALUE argument."""

# Wi-Fi (unused on a PC)
WIFI_SSID = ""
WIFI_PASSWORD = ""

# Gateway
GATEWAY = "192.168.1.10"
PORT = 1883
USERNAME = ""  # device credentials, as `waypost user add NAME --profile sensor` prints them; empty for none
PASSWORD = ""
TLS_CA_FILE = ""  # PEM or DER file of the gateway's certificate authority: turns TLS on (then PORT is 8883)
TLS_CERTIFICATE_FILE = ""  # certificate and key of the device, in place of a password
TLS_KEY_FILE = ""
TIME_URL = ""  # such as "http://192.168.1.10:8080": the gateway's time, in place of NTP_HOST

# Identity and addresses
DEVICE = "pico-1"
ADDRESS = "plant/pico-1/board"  # address of readings
COMMAND_ADDRESS = "command/pico-1/#"  # address of commands
ANSWER_ADDRESS = "command-response/pico-1"  # address of their answers
STATUS_ADDRESS = "status/pico-1"  # "online", or "offline" as our last will (retained)

# Pace and memory
INTERVAL_MS = 1000
RING = 256  # readings kept while the gateway is away, about 150 bytes of RAM each
WINDOW = 8  # readings in flight
KEEP_ALIVE_S = 30
COUNT = 0  # stop after this number of readings; 0: never
NTP_HOST = "pool.ntp.org"  # queried once after Wi-Fi is up; empty for none

SPOOL = "spool"  # folder for the readings that wait; empty: in RAM only, where a reset loses them

# Update of the program by itself, if boot_loader.py has started it
UPDATE_S = 3600  # longest time between two looks for a new version
TRIAL_S = 600  # time in which a new version has to deliver a reading

# Tests only: a file that gets one JSON line for each acknowledged reading
JOURNAL = ""
