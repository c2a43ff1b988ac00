/* wsrelay: relays AMQP over TCP to AMQP over WebSocket (the AMQP WebSocket binding, RFC 6455).
 *
 *   cc -O2 -pthread -o wsrelay wsrelay.c
 *   wsrelay -p 8443
 *
 * Listens on a free loopback port, prints it as port=N, and opens a WebSocket to port -p on this machine for each
 * connection. The bytes of one read become one frame. Its mask is zero, so the bytes do not change.
 * Runs until it is killed. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 65536, HEAD_MAX = 14, BINARY = 0x82, MASKED = 0x80 };

typedef struct { int plain, web; } pair;
static int port;

static void die(const char *what) { perror(what); exit(3); }

static int send_all(int fd, const uint8_t *bytes, size_t size) {
  while (size) { ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL); if (sent <= 0) return 0; bytes += sent; size -= (size_t)sent; }
  return 1; }

static int receive_all(int fd, uint8_t *bytes, size_t size) {
  while (size) { ssize_t got = recv(fd, bytes, size, 0); if (got <= 0) return 0; bytes += got; size -= (size_t)got; }
  return 1; }

static void end(const pair *both) { shutdown(both->plain, SHUT_RDWR); shutdown(both->web, SHUT_RDWR); }

/* Relay the bytes of the program as frames. */
static void *frame(void *argument) {
  pair *both = argument; static __thread uint8_t room[HEAD_MAX + ROOM]; ssize_t got;
  while ((got = recv(both->plain, room + HEAD_MAX, ROOM - 1, 0)) > 0) {
    uint8_t *head = room + HEAD_MAX - (got < 126 ? 6 : 8);
    head[0] = BINARY; head[1] = MASKED | (got < 126 ? got : 126);
    if (got >= 126) { head[2] = (uint8_t)(got >> 8); head[3] = (uint8_t)got; }
    memset(room + HEAD_MAX - 4, 0, 4);
    if (!send_all(both->web, head, (size_t)(room + HEAD_MAX + got - head))) break; }
  end(both); return NULL; }

/* Relay the frames of the broker as bytes. A control frame ends the connection. */
static void unframe(pair *both) {
  static __thread uint8_t room[ROOM]; uint8_t head[10];
  while (receive_all(both->web, head, 2) && (head[0] & 15) <= 2) {
    size_t more = (head[1] & 127) == 126 ? 2 : (head[1] & 127) == 127 ? 8 : 0; uint64_t left = head[1] & 127;
    if (more) { if (!receive_all(both->web, head + 2, more)) break;
      left = 0; for (size_t i = 0; i < more; i++) left = left << 8 | head[2 + i]; }
    while (left) { ssize_t got = recv(both->web, room, left < ROOM ? left : ROOM, 0);
      if (got <= 0 || !send_all(both->plain, room, (size_t)got)) { end(both); return; }
      left -= (uint64_t)got; } }
  end(both); }

static int upgrade(int fd) {
  static const char ask[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\nSec-WebSocket-Key: d2F5cG9zdCBiZW5jaCBrZQ==\r\n\r\n";
  char got[2048] = ""; size_t n = 0;
  if (!send_all(fd, (const uint8_t *)ask, sizeof ask - 1)) return 0;
  while (n < sizeof got - 1 && !strstr(got, "\r\n\r\n")) { if (recv(fd, got + n, 1, 0) != 1) return 0; got[++n] = 0; }
  if (strncmp(got, "HTTP/1.1 101", 12)) { fprintf(stderr, "wsrelay: no WebSocket: %.60s\n", got); return 0; }
  return 1; }

static void *serve(void *argument) {
  pair *both = argument; pthread_t framing; int one = 1;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  both->web = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(both->web, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); setsockopt(both->plain, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!connect(both->web, (void *)&to, sizeof to) && upgrade(both->web) && !pthread_create(&framing, NULL, frame, both)) {
    unframe(both); pthread_join(framing, NULL); }
  close(both->plain); close(both->web); free(both); return NULL; }

int main(int argc, char **argv) {
  int o; while ((o = getopt(argc, argv, "p:")) != -1) { if (o != 'p') return 2; port = atoi(optarg); }
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}; socklen_t size = sizeof at;
  int listening = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listening, (void *)&at, sizeof at) || listen(listening, 128) || getsockname(listening, (void *)&at, &size)) die("listen");
  printf("port=%d\n", ntohs(at.sin_port)); fflush(stdout);
  for (;;) { pair *both = calloc(1, sizeof *both); pthread_t serving;
    if ((both->plain = accept(listening, NULL, NULL)) < 0) die("accept");
    if (pthread_create(&serving, NULL, serve, both)) die("thread");
    pthread_detach(serving); } }
