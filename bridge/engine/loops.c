/*
 * The inner loops of the AMQP machine over Qpid Proton's engine: one call a batch where Python makes five a message.
 *
 * Nothing here knows Python or keeps anything: what is worked on comes with the call, Proton's functions among it (as
 * pointers, out of the one copy of Proton that the process has). So it is compiled by itself, without any headers but
 * the compiler's. `compiled.py` is the other side: it owns every mapping from tags and numbers to deliveries, and it
 * decides about everything that is not plain (other outcomes than accepted, messages larger than the buffer).
 *
 * A delivery is only valid until it is settled: Proton makes new deliveries out of settled ones.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct pn_transport_t pn_transport_t;
typedef struct pn_collector_t pn_collector_t;
typedef struct pn_event_t pn_event_t;
typedef struct pn_link_t pn_link_t;
typedef struct pn_delivery_t pn_delivery_t;
typedef struct pn_bytes_t {
    size_t size;
    const char *start;
} pn_bytes_t;

/* Every field has the size of a pointer and stands in the order of FUNCTIONS in compiled.py. */
struct proton {
    pn_event_t *(*collector_peek)(pn_collector_t *);
    bool (*collector_pop)(pn_collector_t *);
    int (*event_type)(pn_event_t *);
    pn_link_t *(*event_link)(pn_event_t *);
    pn_delivery_t *(*event_delivery)(pn_event_t *);
    bool (*link_is_sender)(pn_link_t *);
    pn_delivery_t *(*link_current)(pn_link_t *);
    bool (*link_advance)(pn_link_t *);
    ssize_t (*link_recv)(pn_link_t *, char *, size_t);
    ssize_t (*link_send)(pn_link_t *, const char *, size_t);
    pn_delivery_t *(*delivery)(pn_link_t *, pn_bytes_t);
    pn_bytes_t (*delivery_tag)(pn_delivery_t *);
    bool (*delivery_updated)(pn_delivery_t *);
    uint64_t (*delivery_remote_state)(pn_delivery_t *);
    bool (*delivery_settled)(pn_delivery_t *);
    bool (*delivery_partial)(pn_delivery_t *);
    bool (*delivery_aborted)(pn_delivery_t *);
    size_t (*delivery_pending)(pn_delivery_t *);
    void (*delivery_update)(pn_delivery_t *, uint64_t);
    void (*delivery_settle)(pn_delivery_t *);
    ssize_t (*transport_push)(pn_transport_t *, const char *, size_t);
    ssize_t (*transport_capacity)(pn_transport_t *);
    ssize_t (*transport_pending)(pn_transport_t *);
    ssize_t (*transport_peek)(pn_transport_t *, char *, size_t);
    void (*transport_pop)(pn_transport_t *, size_t);
    uintptr_t type_delivery; /* PN_DELIVERY */
    uintptr_t type_flow;     /* PN_LINK_FLOW */
    uintptr_t types_told;    /* a bit for each type of event that Python handles; the others are nobody's */
};

enum {
    STATE_ACCEPTED = 0x24, /* AMQP 1.0 section 3.4.2 */
    TAG_BYTES = 8,         /* ours have at most so many; longer ones are a peer's and match nothing */
};

/* Marks of a row; the same in compiled.py. */
enum { ACCEPTED = 1, SETTLED = 2, UPDATED = 4, RECEIVED = 8, FLOW = 16 };

struct row {
    uint64_t link;
    uint64_t delivery; /* of a disposition, else 0 */
    uint64_t tag;
    uint64_t marks;
};

/* Why `waypost_receive` stopped; the same in compiled.py. */
enum { EMPTY = 0, PARTIAL = 1, MORE = 2, LARGE = 3 };

struct received {
    uint64_t messages; /* taken over into the buffer */
    uint64_t aborted;  /* taken, and given up by the peer before their end */
    uint64_t settled;  /* by the peer; the same for all of them */
    uint64_t stopped;
    uint64_t pending; /* bytes of the message that is not whole (PARTIAL) or does not fit (LARGE) */
};

static struct row disposition(const struct proton *pn, pn_link_t *link, pn_delivery_t *delivery)
{
    pn_bytes_t tag = pn->delivery_tag(delivery);
    uint64_t number = 0, marks = 0;
    if (tag.size <= TAG_BYTES)
        for (size_t i = 0; i < tag.size; i++)
            number = number << 8 | (uint8_t)tag.start[i];
    if (pn->delivery_remote_state(delivery) == STATE_ACCEPTED)
        marks |= ACCEPTED;
    if (pn->delivery_settled(delivery))
        marks |= SETTLED;
    if (pn->delivery_updated(delivery))
        marks |= UPDATED;
    return (struct row){(uintptr_t)link, (uintptr_t)delivery, number, marks};
}

/*
 * Take the delivery and flow events from the head of the collector, up to an event that Python handles or `rows_max`
 * rows, and say what they are about: a row a disposition, and one for each run of transfers or flows of a link. Settles
 * nothing. Returns the number of rows.
 */
int waypost_collect(const struct proton *pn, pn_collector_t *collector, struct row *rows, int rows_max)
{
    const pn_link_t *receiving = NULL, *flowing = NULL; /* told already, as long as no other link comes between */
    pn_event_t *event;
    int n = 0;
    while (n < rows_max && (event = pn->collector_peek(collector))) {
        uintptr_t type = (uintptr_t)pn->event_type(event);
        if (type != pn->type_delivery && type != pn->type_flow) {
            if (pn->types_told >> type & 1)
                break;
            pn->collector_pop(collector);
            continue;
        }
        pn_link_t *link = pn->event_link(event); /* the event keeps its delivery and that its link, until the pop */
        if (!link) {
            /* of a delivery that is over with its link: nobody's */
        } else if (type == pn->type_flow) {
            if (link != flowing)
                rows[n++] = (struct row){(uintptr_t)link, 0, 0, FLOW};
            flowing = link;
        } else if (pn->link_is_sender(link)) {
            rows[n++] = disposition(pn, link, pn->event_delivery(event));
        } else {
            if (link != receiving)
                rows[n++] = (struct row){(uintptr_t)link, 0, 0, RECEIVED};
            receiving = link;
        }
        pn->collector_pop(collector);
    }
    return n;
}

/*
 * Take complete messages of a link, one behind the other into `bytes`, as long as they are settled alike, fit, and are
 * no more than `messages_max`. `ends`: where each ends. `deliveries`: theirs, where they are not settled; settled ones
 * are done with here, and so are aborted ones.
 */
void waypost_receive(const struct proton *pn, pn_link_t *link, char *bytes, size_t bytes_max, uint64_t *deliveries,
                     uint64_t *ends, uint64_t messages_max, struct received *out)
{
    pn_delivery_t *delivery;
    uint64_t n = 0;
    size_t end = 0;
    *out = (struct received){.stopped = EMPTY};
    while ((delivery = pn->link_current(link))) {
        size_t size = pn->delivery_pending(delivery);
        bool settled = pn->delivery_settled(delivery);
        if (pn->delivery_partial(delivery)) {
            out->stopped = PARTIAL;
            out->pending = size;
            break;
        }
        if (n && (n == messages_max || settled != (bool)out->settled || size > bytes_max - end)) {
            out->stopped = MORE;
            break;
        }
        if (size > bytes_max) {
            out->stopped = LARGE;
            out->pending = size;
            break;
        }
        ssize_t taken = pn->link_recv(link, bytes + end, bytes_max - end);
        if (taken < 0 && pn->delivery_aborted(delivery)) {
            out->aborted++;
            pn->delivery_settle(delivery); /* which also advances */
            continue;
        }
        if (taken > 0) /* an empty message gives an error code for "the end" */
            end += (size_t)taken;
        out->settled = settled;
        ends[n] = end;
        if (settled) {
            pn->delivery_settle(delivery);
        } else {
            deliveries[n] = (uintptr_t)delivery;
            pn->link_advance(link);
        }
        n++;
    }
    out->messages = n;
}

/* Where to put what a read brought, and what it was: as `waypost_collect` and `waypost_receive` say it. */
struct read {
    struct row *rows;
    char *bytes;
    uint64_t *deliveries;
    uint64_t *ends;
    uint64_t rows_max; /* of all three */
    uint64_t bytes_max;
    /* told: */
    uint64_t rows_told;
    uint64_t link; /* of the one row there is, where its messages were taken over; else 0 */
    struct received received;
};

/*
 * Give Proton bytes of the peer, and take the events they made. Where that is nothing but messages of one link, as it
 * is most of the time, they are received as well.
 */
void waypost_read(const struct proton *pn, pn_transport_t *transport, pn_collector_t *collector, const char *data,
                  uint64_t size, struct read *out)
{
    while (size) {
        ssize_t taken = pn->transport_push(transport, data, size);
        if (taken <= 0)
            break; /* the transport has failed, or the peer had closed: the rest is of no interest */
        data += taken;
        size -= (uint64_t)taken;
    }
    int n = waypost_collect(pn, collector, out->rows, (int)out->rows_max);
    out->rows_told = (uint64_t)n;
    out->link = 0;
    if (n == 1 && out->rows[0].marks == RECEIVED && !pn->collector_peek(collector)) {
        pn_link_t *link = (pn_link_t *)(uintptr_t)out->rows[0].link;
        waypost_receive(pn, link, out->bytes, out->bytes_max, out->deliveries, out->ends, out->rows_max,
                        &out->received);
        out->link = out->rows[0].link;
    }
}

/*
 * Take what Proton wants to send, as much as there is room for. Returns how many bytes; less than 0 when it will never
 * send more: -1 without any, -2 with one, and so on.
 */
int64_t waypost_write(const struct proton *pn, pn_transport_t *transport, char *bytes, uint64_t bytes_max)
{
    uint64_t n = 0;
    ssize_t pending = 0;
    while (n < bytes_max && (pending = pn->transport_pending(transport)) > 0) {
        size_t room = bytes_max - n;
        ssize_t size = pn->transport_peek(transport, bytes + n, (size_t)pending < room ? (size_t)pending : room);
        if (size <= 0)
            break;
        pn->transport_pop(transport, (size_t)size);
        n += (uint64_t)size;
    }
    return pending >= 0 ? (int64_t)n : -1 - (int64_t)n;
}

/* Give incoming deliveries an outcome that has no fields, and forget them. */
void waypost_settle(const struct proton *pn, const uint64_t *deliveries, uint64_t n, uint64_t state)
{
    for (uint64_t i = 0; i < n; i++) {
        pn_delivery_t *delivery = (pn_delivery_t *)(uintptr_t)deliveries[i];
        pn->delivery_update(delivery, state);
        pn->delivery_settle(delivery);
    }
}

/* Forget deliveries of ours that the peer has settled. */
void waypost_forget(const struct proton *pn, const uint64_t *deliveries, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        pn->delivery_settle((pn_delivery_t *)(uintptr_t)deliveries[i]);
}

/*
 * Send messages under consecutive tags from `tag` on: `bytes` holds them one behind the other, `numbers` their sizes.
 * Where they are not settled, `numbers` holds their deliveries afterwards.
 */
void waypost_send(const struct proton *pn, pn_link_t *link, uint64_t tag, const char *bytes, uint64_t *numbers,
                  uint64_t n, int settled)
{
    for (uint64_t i = 0; i < n; i++, tag++) {
        char name[TAG_BYTES];
        size_t size = 0;
        for (int shift = 8 * (TAG_BYTES - 1); shift >= 0; shift -= 8) /* big-endian, without leading zeros */
            if (size || tag >> shift || !shift)
                name[size++] = (char)(tag >> shift & 0xFF);
        pn_delivery_t *delivery = pn->delivery(link, (pn_bytes_t){size, name});
        pn->link_send(link, bytes, (size_t)numbers[i]);
        bytes += numbers[i];
        numbers[i] = (uintptr_t)delivery;
        if (settled)
            pn->delivery_settle(delivery);
        else
            pn->link_advance(link);
    }
}
