/*
 * Inner loops of the AMQP machine over Qpid Proton's engine: one call per batch, where Python would make five calls per
 * message.
 *
 * `loops.py` passes Proton's functions as pointers, from the only copy of Proton in the process. It also handles the
 * rare cases, such as outcomes other than accepted and released.
 *
 * The GIL is held, except for long input (LONG_BYTES): releasing it costs more than most calls take, and another thread
 * would make us wait. A delivery is only valid until it is settled: Proton reuses settled deliveries.
 */
#include "../native.h"

#include <string.h>

typedef struct pn_transport_t pn_transport_t;
typedef struct pn_collector_t pn_collector_t;
typedef struct pn_event_t pn_event_t;
typedef struct pn_session_t pn_session_t;
typedef struct pn_link_t pn_link_t;
typedef struct pn_delivery_t pn_delivery_t;
typedef struct pn_bytes_t {
    size_t size;
    const char *start;
} pn_bytes_t;

/* Proton's functions and the event types that `bind_proton` sets, once. */
static struct proton {
    pn_event_t *(*collector_peek)(pn_collector_t *);
    bool (*collector_pop)(pn_collector_t *);
    int (*event_type)(pn_event_t *);
    pn_link_t *(*event_link)(pn_event_t *);
    pn_delivery_t *(*event_delivery)(pn_event_t *);
    ssize_t (*session_incoming_bytes)(pn_session_t *);
    ssize_t (*session_outgoing_bytes)(pn_session_t *);
    bool (*link_is_sender)(pn_link_t *);
    int (*link_state)(pn_link_t *);
    int (*link_credit)(pn_link_t *);
    bool (*link_get_drain)(pn_link_t *);
    pn_delivery_t *(*link_current)(pn_link_t *);
    int (*link_queued)(pn_link_t *);
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
    unsigned long long type_delivery; /* PN_DELIVERY */
    unsigned long long type_flow;     /* PN_LINK_FLOW */
    unsigned long long types_handled; /* a bit for each event type that Python handles; the others are dropped */
    unsigned long long rows_max;      /* rows of one `amqp_collect`; more take another call */
} pn;

#define PROTON(name) {"pn_" #name, offsetof(struct proton, name)}
static const struct {
    const char *name;
    size_t place; /* of the pointer, in `pn` */
} PROTON_FUNCTIONS[] = {
    PROTON(collector_peek),
    PROTON(collector_pop),
    PROTON(event_type),
    PROTON(event_link),
    PROTON(event_delivery),
    PROTON(session_incoming_bytes),
    PROTON(session_outgoing_bytes),
    PROTON(link_is_sender),
    PROTON(link_state),
    PROTON(link_credit),
    PROTON(link_get_drain),
    PROTON(link_current),
    PROTON(link_queued),
    PROTON(link_advance),
    PROTON(link_recv),
    PROTON(link_send),
    PROTON(delivery),
    PROTON(delivery_tag),
    PROTON(delivery_updated),
    PROTON(delivery_remote_state),
    PROTON(delivery_settled),
    PROTON(delivery_partial),
    PROTON(delivery_aborted),
    PROTON(delivery_pending),
    PROTON(delivery_update),
    PROTON(delivery_settle),
    PROTON(transport_push),
    PROTON(transport_capacity),
    PROTON(transport_pending),
    PROTON(transport_peek),
    PROTON(transport_pop),
};

/* Check arguments as `takes`, of a function that calls Proton. Raises TypeError, or ValueError before `bind_proton`. */
static bool may_call(const char *function, PyObject *const *arguments, Py_ssize_t count, const char *kinds)
{
    if (!pn.rows_max)
        PyErr_SetString(PyExc_ValueError, "the functions of Proton are not bound");
    return pn.rows_max && takes(function, arguments, count, kinds);
}

/*
 * bind_proton(addresses of functions by name, PN_DELIVERY, PN_LINK_FLOW, events that Python handles as bits, rows of one
 * `amqp_collect`). Raises KeyError.
 */
static PyObject *bind_proton(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    struct proton bound;
    if (!takes("bind_proton", arguments, count, "diiii"))
        return NULL;
    for (size_t i = 0; i < sizeof PROTON_FUNCTIONS / sizeof *PROTON_FUNCTIONS; i++) {
        const char *name = PROTON_FUNCTIONS[i].name;
        PyObject *key = PyUnicode_FromString(name);
        PyObject *number = key ? PyDict_GetItemWithError(arguments[0], key) : NULL;
        void *address = number ? PyLong_AsVoidPtr(number) : NULL;
        Py_XDECREF(key);
        if (!address) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_KeyError, name);
            return NULL;
        }
        memcpy((char *)&bound + PROTON_FUNCTIONS[i].place, &address, sizeof address);
    }
    unsigned long long *numbers[] = {&bound.type_delivery, &bound.type_flow, &bound.types_handled, &bound.rows_max};
    for (int i = 0; i < 4; i++)
        *numbers[i] = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(arguments[1 + i]);
    if (PyErr_Occurred())
        return NULL;
    pn = bound;
    return none();
}

enum {
    STATE_ACCEPTED = 0x24, /* AMQP 1.0 section 3.4.2 */
    STATE_TRANSACTIONAL = 0x34, /* part 4, section 4.5.8 */
    TAG_BYTES = 8,         /* longest tag of ours; a longer one is a peer's and matches nothing */
    LONG_BYTES = 4096,     /* input from which Proton takes longer than releasing the GIL does */
    PIECE_BYTES = 8192,    /* input between two checks for events that Python handles: 80 attaches, 2 ms */
    PARTIAL_BYTES_MIN = 16384, /* size from which an incomplete message is taken: while a connection lasts, Proton never
                                  frees the memory of the largest piece that a delivery held */
    QUEUED_FEW = 4,        /* fewer messages than this in PARTIAL_BYTES_MIN are large, and taken before more is read */
    SMALL_BYTES = 4096,    /* largest input of `amqp_take_single`; Python handles larger reads */
    LOCAL_CLOSED = 4,      /* PN_LOCAL_CLOSED */
};

/* Return Proton's object at an address; NULL with an error when it was freed, or when `address` is NULL. */
static void *at(PyObject *address)
{
    void *found = address ? PyLong_AsVoidPtr(address) : NULL;
    if (!found && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "Proton's object was freed");
    return found;
}

/* --- events: collect --------------------------------------------------------------------------------------------- */

/* Marks of a row; the same in loops.py. */
enum { ACCEPTED = 1, SETTLED = 2, UPDATED = 4, RECEIVED = 8, FLOW = 16, DONE = ACCEPTED | SETTLED | UPDATED };

/* (link, delivery of a disposition or 0, its tag, marks) */
static PyObject *row(const pn_link_t *link, const pn_delivery_t *delivery, uint64_t tag, uint64_t marks)
{
    typedef unsigned long long number;
    return Py_BuildValue("KKKK", (number)(uintptr_t)link, (number)(uintptr_t)delivery, (number)tag, (number)marks);
}

/* Python handles events of this type. */
static bool is_handled(unsigned long long type)
{
    return type < 64 && pn.types_handled >> type & 1;
}

/* Rows for the collected events, and the links of the last rows: consecutive events of one link share a row. */
struct collected {
    PyObject *rows;
    unsigned long long n;
    pn_link_t *receiving, *flowing, *accepting;
    PyObject *deliveries, *tags; /* borrowed from the last row of `accepting` */
};

/* Begin a row of messages that are accepted and settled: (link, deliveries, their tags, marks). */
static bool begin_accepted(struct collected *all, pn_link_t *link)
{
    typedef unsigned long long number;
    all->accepting = link;
    all->deliveries = PyList_New(0);
    all->tags = PyList_New(0);
    return append(all->rows, Py_BuildValue("KNNK", (number)(uintptr_t)link, all->deliveries, all->tags, (number)DONE));
}

/* Add the peer's disposition of a message: a row, or an entry in the row of accepted and settled ones. */
static bool disposition(struct collected *all, pn_link_t *link, pn_delivery_t *delivery)
{
    pn_bytes_t tag = pn.delivery_tag(delivery);
    uint64_t number = 0, marks = 0;
    if (tag.size <= TAG_BYTES)
        for (size_t i = 0; i < tag.size; i++)
            number = number << 8 | (uint8_t)tag.start[i];
    if (pn.delivery_remote_state(delivery) == STATE_ACCEPTED)
        marks |= ACCEPTED;
    if (pn.delivery_settled(delivery))
        marks |= SETTLED;
    if (pn.delivery_updated(delivery))
        marks |= UPDATED;
    if (marks != DONE) {
        all->accepting = NULL;
        return append(all->rows, row(link, delivery, number, marks));
    }
    return (link == all->accepting || begin_accepted(all, link)) &&
           append(all->deliveries, PyLong_FromVoidPtr(delivery)) &&
           append(all->tags, PyLong_FromUnsignedLongLong(number));
}

/*
 * Take the delivery and flow events from the head of the collector, up to an event that Python handles or `rows_max`
 * rows. Add a row for each disposition (consecutive accepted and settled ones share a row), and one for consecutive
 * transfers or flows of a link. Settles nothing. Return false on an error.
 */
static bool collect_into(struct collected *all, pn_collector_t *collector)
{
    pn_event_t *event;
    while (all->n < pn.rows_max && (event = pn.collector_peek(collector))) {
        unsigned long long type = (unsigned long long)pn.event_type(event);
        if (type != pn.type_delivery && type != pn.type_flow) {
            if (is_handled(type))
                break;
            pn.collector_pop(collector);
            continue;
        }
        pn_link_t *link = pn.event_link(event); /* the event holds its delivery, and that its link, until the pop */
        bool done = true;
        if (!link) {
            /* a delivery of a freed link: ignored */
        } else if (type == pn.type_flow) {
            if (link != all->flowing)
                done = ++all->n && append(all->rows, row(link, NULL, 0, FLOW));
            all->flowing = link;
        } else if (pn.link_is_sender(link)) {
            done = ++all->n && disposition(all, link, pn.event_delivery(event));
        } else {
            if (link != all->receiving)
                done = ++all->n && append(all->rows, row(link, NULL, 0, RECEIVED));
            all->receiving = link;
        }
        if (!done)
            return false;
        pn.collector_pop(collector);
    }
    return true;
}

/* collect(collector) -> (rows, whether another event waits) */
static PyObject *collect(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_collect", arguments, count, "i"))
        return NULL;
    pn_collector_t *collector = at(arguments[0]);
    struct collected all = {.rows = collector ? PyList_New(0) : NULL};
    if (all.rows && collect_into(&all, collector))
        return Py_BuildValue("NN", all.rows, PyBool_FromLong(pn.collector_peek(collector) != NULL));
    Py_XDECREF(all.rows);
    return NULL;
}

/* --- messages of the peer: receive, read, settle, forget --------------------------------------------------------- */

/* Return a complete message; NULL on an error. */
static PyObject *message_of(pn_link_t *link, size_t size)
{
    PyObject *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (message && size)
        pn.link_recv(link, PyBytes_AsString(message), size);
    return message;
}

/*
 * Take complete messages of a link, while all are settled or all are unsettled, and all or none are part of transactions.
 * Deliveries that are aborted, or settled and part of no transaction, are freed here. Return (messages, the other
 * deliveries, number taken including aborted ones, settled, more can be taken, bytes of the largest, complete or not, the
 * first was aborted, received bytes of a large incomplete message, part of transactions).
 */
static PyObject *receive_from(pn_link_t *link)
{
    PyObject *messages = PyList_New(0), *deliveries = PyList_New(0), *begins = none();
    pn_delivery_t *delivery;
    bool settled = false, transactional = false, more = false, first_aborted = false, done = messages && deliveries;
    size_t largest = 0;
    unsigned long long taken = 0, n = 0;
    while (done && (delivery = pn.link_current(link))) {
        size_t size = pn.delivery_pending(delivery);
        bool its_settled = pn.delivery_settled(delivery), partial = pn.delivery_partial(delivery);
        if (!partial && pn.delivery_aborted(delivery)) {
            first_aborted = first_aborted || !taken;
            taken++;
            pn.delivery_settle(delivery); /* which also advances */
            continue;
        }
        bool its_transactional = pn.delivery_remote_state(delivery) == STATE_TRANSACTIONAL;
        more = !partial && n && (its_settled != settled || its_transactional != transactional);
        if (more)
            break;
        if (size > largest)
            largest = size;
        if (partial) {
            if (size >= PARTIAL_BYTES_MIN) {
                Py_XDECREF(begins);
                begins = message_of(link, size);
                done = begins != NULL;
            }
            break;
        }
        settled = its_settled, transactional = its_transactional;
        done = append(messages, message_of(link, size));
        if (settled && !transactional) {
            pn.delivery_settle(delivery);
        } else {
            done = done && append(deliveries, PyLong_FromVoidPtr(delivery));
            pn.link_advance(link);
        }
        n++, taken++;
    }
    if (done)
        return Py_BuildValue("NNKNNnNNN", messages, deliveries, taken, PyBool_FromLong(settled), PyBool_FromLong(more),
                             (Py_ssize_t)largest, PyBool_FromLong(first_aborted), begins,
                             PyBool_FromLong(transactional));
    Py_XDECREF(messages);
    Py_XDECREF(deliveries);
    Py_XDECREF(begins);
    return NULL;
}

/* receive(link) -> see `receive_from` */
static PyObject *receive(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_receive", arguments, count, "i"))
        return NULL;
    pn_link_t *link = at(arguments[0]);
    return link ? receive_from(link) : NULL;
}

/* Give Proton bytes of the peer. When the transport fails or the peer has closed, the rest is dropped. */
static void push(pn_transport_t *transport, const char *data, size_t size)
{
    void *others = size > LONG_BYTES ? PyEval_SaveThread() : NULL;
    for (ssize_t taken; size && (taken = pn.transport_push(transport, data, size)) > 0; size -= (size_t)taken)
        data += taken;
    if (others)
        PyEval_RestoreThread(others);
}

/* Messages may be taken from this link: it is a receiver, and this end has not detached it. */
static bool is_open(pn_link_t *link)
{
    return link && !(pn.link_state(link) & LOCAL_CLOSED);
}

/*
 * read(transport, collector, bytes) -> (rows, received, an event waits, Proton has stopped reading, bytes left)
 *
 * Give Proton bytes of the peer, a piece at a time, and take their events. When Python has to handle an event, the
 * later pieces are left, as a read may have a thousand attaches; the same once there is part of a large message. If the
 * bytes are only messages of one link, as most are, the messages are received as well (as by `receive`; otherwise None).
 */
static PyObject *read_bytes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_read", arguments, count, "iib"))
        return NULL;
    pn_transport_t *transport = at(arguments[0]);
    pn_collector_t *collector = transport ? at(arguments[1]) : NULL;
    char *data;
    Py_ssize_t size;
    if (!collector || PyBytes_AsStringAndSize(arguments[2], &data, &size))
        return NULL;
    struct collected all = {.rows = PyList_New(0)};
    bool done = all.rows != NULL, large = false;
    Py_ssize_t pushed = 0;
    do {
        Py_ssize_t piece = size - pushed < PIECE_BYTES ? size - pushed : PIECE_BYTES;
        push(transport, data + pushed, (size_t)piece);
        pushed += piece;
        done = done && collect_into(&all, collector);
        large = pushed >= PARTIAL_BYTES_MIN && is_open(all.receiving) && pn.link_queued(all.receiving) < QUEUED_FEW;
    } while (done && pushed < size && !large && !pn.collector_peek(collector));
    size -= pushed;
    if (done) {
        bool waits = pn.collector_peek(collector) != NULL, input_closed = pn.transport_capacity(transport) < 0;
        PyObject *received = all.n == 1 && is_open(all.receiving) && !waits ? receive_from(all.receiving) : none();
        if (received)
            return Py_BuildValue("NNNNn", all.rows, received, PyBool_FromLong(waits), PyBool_FromLong(input_closed), size);
    }
    Py_XDECREF(all.rows);
    return NULL;
}

/* settle(deliveries by number, numbers, state) -> number settled: settle incoming deliveries with an outcome without
 * fields, and remove them. Unknown numbers are skipped. */
static PyObject *settle(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_settle", arguments, count, "dOi"))
        return NULL;
    PyObject *by_number = arguments[0], *numbers = PyObject_GetIter(arguments[1]), *number;
    unsigned long long state = PyLong_AsUnsignedLongLong(arguments[2]), n = 0;
    if (!numbers || PyErr_Occurred()) {
        Py_XDECREF(numbers);
        return NULL;
    }
    while ((number = PyIter_Next(numbers))) {
        PyObject *address = PyDict_GetItemWithError(by_number, number);
        pn_delivery_t *delivery = address ? at(address) : NULL;
        if (delivery && !PyDict_DelItem(by_number, number)) {
            pn.delivery_update(delivery, state);
            pn.delivery_settle(delivery);
            n++;
        }
        Py_XDECREF(number);
        if (PyErr_Occurred())
            break;
    }
    Py_XDECREF(numbers);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(n);
}

/* forget(deliveries): settle our deliveries that the peer has settled. */
static PyObject *forget(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_forget", arguments, count, "O"))
        return NULL;
    PyObject *addresses = PyObject_GetIter(arguments[0]), *address;
    while (addresses && (address = PyIter_Next(addresses))) {
        pn_delivery_t *delivery = at(address);
        Py_XDECREF(address);
        if (!delivery)
            break;
        pn.delivery_settle(delivery);
    }
    Py_XDECREF(addresses);
    return PyErr_Occurred() ? NULL : none();
}

/* If the delivery of this tag is the one at this address, remove and settle it. */
static bool forgotten(PyObject *by_tag, PyObject *tag, PyObject *address)
{
    PyObject *found = PyDict_GetItemWithError(by_tag, tag);
    void *delivery = found ? PyLong_AsVoidPtr(found) : NULL;
    if (!delivery || delivery != PyLong_AsVoidPtr(address) || PyDict_DelItem(by_tag, tag))
        return false;
    pn.delivery_settle(delivery);
    return true;
}

/* forget_accepted(deliveries by tag, deliveries, their tags) -> tags that had their delivery, which is settled now. */
static PyObject *forget_accepted(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_forget_accepted", arguments, count, "dll"))
        return NULL;
    Py_ssize_t n = PyList_Size(arguments[2]);
    if (PyList_Size(arguments[1]) != n) {
        PyErr_SetString(PyExc_ValueError, "each delivery has one tag");
        return NULL;
    }
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < n; i++) {
        PyObject *address = listed(arguments[1], i), *tag = address ? listed(arguments[2], i) : NULL;
        bool done = tag && (!forgotten(arguments[0], tag, address) || !PyList_Append(found, tag));
        Py_XDECREF(address);
        Py_XDECREF(tag);
        if (!done || PyErr_Occurred()) {
            Py_XDECREF(found);
            found = NULL;
        }
    }
    return found;
}

/* --- content of a message: malformed_at, strip_header -------------------------------------------------------------- */

/* Section codes and format codes (AMQP 1.0 sections 3.2 and 1.6), and a place in the list of properties (3.2.4). */
enum { HEADER = 0x70, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE,
       VALUE, FOOTER };
enum { ULONG0 = 0x44, SMALL_ULONG = 0x53, BOOLEAN = 0x56, CHAR = 0x73, ULONG = 0x80, BINARY8 = 0xA0, TEXT8 = 0xA1,
       SYMBOL8 = 0xA3, BINARY32 = 0xB0, TEXT32 = 0xB1, SYMBOL32 = 0xB3, LIST0 = 0x45, LIST8 = 0xC0, MAP8 = 0xC1,
       LIST32 = 0xD0, MAP32 = 0xD1, ARRAY8 = 0xE0, ARRAY32 = 0xF0, EXPIRY_FIELD = 8 };
/* Keys that a map may have: any, those of annotations (symbol, string, ulong), or of applications (string, symbol). */
enum keys { KEYS_ANY, KEYS_ANNOTATIONS, KEYS_APPLICATION };
enum { DEPTH_MAX = 32, SECTIONS_MAX = 1024 }; /* as in limits.py */

static size_t number_at(const uint8_t *at)
{
    return (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
}

static bool is_continuation(uint8_t byte)
{
    return byte >> 6 == 2;
}

/* Strict UTF-8, or ASCII only: no overlong form, no surrogate, nothing above U+10FFFF. */
static bool is_text(const uint8_t *at, const uint8_t *end, bool ascii)
{
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        uint8_t first = *at++;
        if (first < 0x80)
            continue;
        int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (ascii || first < 0xC2 || first > 0xF4 || end - at < more)
            return false;
        if ((first == 0xE0 && *at < 0xA0) || (first == 0xED && *at > 0x9F) || (first == 0xF0 && *at < 0x90) ||
            (first == 0xF4 && *at > 0x8F))
            return false;
        for (; more; more--)
            if (!is_continuation(*at++))
                return false;
    }
    return true;
}

static bool is_key(uint8_t code, enum keys keys)
{
    if (keys == KEYS_ANY || code == TEXT8 || code == TEXT32 || code == SYMBOL8 || code == SYMBOL32)
        return true;
    return keys == KEYS_ANNOTATIONS && (code == ULONG0 || code == SMALL_ULONG || code == ULONG);
}

static const uint8_t *walk_content(uint8_t code, const uint8_t *at, const uint8_t *end, int depth, enum keys keys);

/* Return the end of the value that begins at `at`; NULL when it is malformed or exceeds `end`. */
static const uint8_t *walk(const uint8_t *at, const uint8_t *end, int depth)
{
    if (at >= end)
        return NULL;
    if (*at)
        return walk_content(*at, at + 1, end, depth, KEYS_ANY);
    if (depth <= 0 || end - at < 2 || !at[1]) /* a descriptor cannot be a described value */
        return NULL;
    at = walk(at + 1, end, depth - 1);
    return at ? walk(at, end, depth - 1) : NULL;
}

/* Return the end of the array items at `at`, which share one constructor. */
static const uint8_t *walk_array(const uint8_t *at, const uint8_t *end, size_t count, int depth)
{
    if (at < end && !*at)
        at = end - at < 2 || !at[1] ? NULL : walk(at + 1, end, depth);
    if (!at || at >= end || !*at)
        return NULL;
    uint8_t code = *at++;
    while (at && count--)
        at = walk_content(code, at, end, depth, KEYS_ANY);
    return at;
}

/* Return the end of a list, map or array with its size field at `at`. */
static const uint8_t *walk_compound(uint8_t code, const uint8_t *at, const uint8_t *end, int depth, enum keys keys)
{
    bool wide = code & 0x10;
    size_t field = wide ? 4 : 1;
    if (depth <= 0 || (size_t)(end - at) < 2 * field)
        return NULL;
    size_t size = wide ? number_at(at) : *at, count = wide ? number_at(at + field) : at[field];
    at += field;
    if (size < field || size > (size_t)(end - at) || count > size - field)
        return NULL;
    bool map = code == MAP8 || code == MAP32;
    const uint8_t *stop = at + size;
    at += field;
    if (code == ARRAY8 || code == ARRAY32) {
        at = walk_array(at, stop, count, depth - 1);
    } else {
        if (map && count % 2)
            return NULL;
        for (size_t i = 0; at && i < count; i++)
            at = map && i % 2 == 0 && at < stop && !is_key(*at, keys) ? NULL : walk(at, stop, depth - 1);
    }
    return at == stop ? at : NULL;
}

/* Return the end of the content of constructor `code`. */
static const uint8_t *walk_content(uint8_t code, const uint8_t *at, const uint8_t *end, int depth, enum keys keys)
{
    size_t left = (size_t)(end - at), size = 0;
    switch (code) {
    case 0x40: case 0x41: case 0x42: case 0x43: case ULONG0: case LIST0:
        return at;
    case BOOLEAN:
        return left >= 1 && *at <= 1 ? at + 1 : NULL;
    case CHAR: {
        size_t scalar = left >= 4 ? number_at(at) : SIZE_MAX;
        return scalar <= 0x10FFFF && (scalar < 0xD800 || scalar > 0xDFFF) ? at + 4 : NULL;
    }
    case 0x50: case 0x51: case 0x52: case SMALL_ULONG: case 0x54: case 0x55:
        size = 1;
        break;
    case 0x60: case 0x61:
        size = 2;
        break;
    case 0x70: case 0x71: case 0x72: case 0x74:
        size = 4;
        break;
    case ULONG: case 0x81: case 0x82: case 0x83: case 0x84:
        size = 8;
        break;
    case 0x94: case 0x98:
        size = 16;
        break;
    case BINARY8: case TEXT8: case SYMBOL8: case BINARY32: case TEXT32: case SYMBOL32: {
        size_t field = code & 0x10 ? 4 : 1;
        if (left < field)
            return NULL;
        size = field == 4 ? number_at(at) : *at;
        at += field;
        if (size > left - field)
            return NULL;
        bool text = code == BINARY8 || code == BINARY32 || is_text(at, at + size, (code & 0xF) == 3);
        return text ? at + size : NULL;
    }
    case LIST8: case MAP8: case LIST32: case MAP32: case ARRAY8: case ARRAY32:
        return walk_compound(code, at, end, depth, keys);
    default:
        return NULL;
    }
    return left >= size ? at + size : NULL;
}

/* Return the section code of the descriptor at `*at`, and move `*at` after it; 0 when it is not of a section. */
static int section_code(const uint8_t **at, const uint8_t *end)
{
    static const char *const names[] = {
        "amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map", "amqp:properties:list",
        "amqp:application-properties:map", "amqp:data:binary", "amqp:amqp-sequence:list", "amqp:amqp-value:*",
        "amqp:footer:map"};
    const uint8_t *descriptor = *at, *behind = end - descriptor < 2 || !descriptor[0] ? NULL : walk(descriptor, end, 1);
    if (!behind)
        return 0;
    *at = behind;
    if (descriptor[0] == SMALL_ULONG)
        return descriptor[1];
    if (descriptor[0] == ULONG)
        return number_at(descriptor + 1) ? 0 : number_at(descriptor + 5) <= FOOTER ? (int)number_at(descriptor + 5) : 0;
    if (descriptor[0] == SYMBOL8 || descriptor[0] == SYMBOL32) {
        const uint8_t *name = descriptor + (descriptor[0] == SYMBOL8 ? 2 : 5);
        for (int i = 0; i <= FOOTER - HEADER; i++)
            if (strlen(names[i]) == (size_t)(behind - name) && !memcmp(names[i], name, (size_t)(behind - name)))
                return HEADER + i;
    }
    return 0;
}

/* Return the end of a section's value; NULL when it is malformed or of the wrong type. */
static const uint8_t *walk_section(int section, const uint8_t *at, const uint8_t *end)
{
    if (at >= end)
        return NULL;
    uint8_t code = *at;
    bool list = code == LIST0 || code == LIST8 || code == LIST32, map = code == MAP8 || code == MAP32;
    switch (section) {
    case HEADER: case PROPERTIES: case SEQUENCE:
        return list ? walk(at, end, DEPTH_MAX) : NULL;
    case DATA:
        return code == BINARY8 || code == BINARY32 ? walk(at, end, DEPTH_MAX) : NULL;
    case VALUE:
        return walk(at, end, DEPTH_MAX);
    case APPLICATION_PROPERTIES:
        return map ? walk_content(code, at + 1, end, DEPTH_MAX, KEYS_APPLICATION) : NULL;
    default:
        return map ? walk_content(code, at + 1, end, DEPTH_MAX, KEYS_ANNOTATIONS) : NULL;
    }
}

/* Return the offset of the first section that is malformed or out of order; -1 for a well-formed message. See
 * `EngineLoops.malformed_at`. */
static Py_ssize_t malformed_from(const uint8_t *message, size_t size)
{
    const uint8_t *at = message, *end = message + size;
    int before = 0;
    for (int n = 0; at < end || !n; n++) {
        const uint8_t *start = at;
        if (n >= SECTIONS_MAX || at >= end || *at++)
            return start - message;
        int section = section_code(&at, end);
        bool repeated = section == before && (section == DATA || section == SEQUENCE);
        bool second_body = before >= DATA && before <= VALUE && section != FOOTER;
        if (section < HEADER || section > FOOTER || (!repeated && (section <= before || second_body)))
            return start - message;
        if (!(at = walk_section(section, at, end)))
            return start - message;
        before = section;
    }
    return -1;
}

/* malformed_at(message) -> see `malformed_from` */
static PyObject *malformed_at(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("amqp_malformed_at", arguments, count, "b"))
        return NULL;
    char *message;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arguments[0], &message, &size))
        return NULL;
    return PyLong_FromSsize_t(malformed_from((const uint8_t *)message, (size_t)size));
}

/* The properties reach absolute-expiry-time, or are too short for their count. */
static bool reaches_expiry(const uint8_t *value, size_t left)
{
    if (*value == LIST8)
        return left < 3 || value[2] > EXPIRY_FIELD;
    return *value == LIST32 && (left < 9 || number_at(value + 5) > EXPIRY_FIELD);
}

/* These bytes are a usual bare message. See `EngineLoops.strip_header`. */
static bool usual(const uint8_t *bare, size_t size)
{
    if (size < 4 || bare[0] || bare[1] != SMALL_ULONG || bare[2] < PROPERTIES || bare[2] > FOOTER)
        return false;
    if (bare[2] == PROPERTIES && reaches_expiry(bare + 3, size - 3))
        return false;
    return malformed_from(bare, size) < 0;
}

/* strip_header(messages, header) -> the bytes after the header of each message; None when one is not usual. */
static PyObject *strip_header(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("amqp_strip_header", arguments, count, "Ob"))
        return NULL;
    char *header, *bytes;
    Py_ssize_t start, size;
    if (PyBytes_AsStringAndSize(arguments[1], &header, &start))
        return NULL;
    PyObject *messages = PyObject_GetIter(arguments[0]), *bodies = PyList_New(0), *message;
    bool done = messages && bodies, all_usual = true;
    while (done && all_usual && (message = PyIter_Next(messages))) {
        done = !PyBytes_AsStringAndSize(message, &bytes, &size);
        all_usual = done && size >= start && !memcmp(bytes, header, (size_t)start) &&
                    usual((const uint8_t *)bytes + start, (size_t)(size - start));
        if (all_usual && start) {
            done = append(bodies, PyBytes_FromStringAndSize(bytes + start, size - start));
        } else if (all_usual) {
            Py_XINCREF(message);
            done = append(bodies, message);
        }
        Py_XDECREF(message);
    }
    Py_XDECREF(messages);
    if (done && all_usual && !PyErr_Occurred())
        return bodies;
    Py_XDECREF(bodies);
    return PyErr_Occurred() ? NULL : none();
}

/* --- outgoing messages: send, write ------------------------------------------------------------------------------ */

/* Append the bytes that Proton wants to send to a list. Return 1, 0 when it will never send more, or -1 on an error. */
static int write_into(pn_transport_t *transport, PyObject *output)
{
    ssize_t pending;
    while ((pending = pn.transport_pending(transport)) > 0) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, pending);
        if (bytes && pn.transport_peek(transport, PyBytes_AsString(bytes), (size_t)pending) != pending) {
            Py_XDECREF(bytes);
            PyErr_SetString(PyExc_ValueError, "Proton returned fewer bytes than it has pending");
            return -1;
        }
        if (!append(output, bytes))
            return -1;
        pn.transport_pop(transport, (size_t)pending);
    }
    return pending >= 0;
}

/* Send all but the last piece of a message larger than PARTIAL_BYTES_MIN at once; return the start of the last piece. */
static size_t send_pieces(pn_link_t *link, const char *message, size_t size, pn_transport_t *transport, PyObject *output)
{
    size_t sent = 0;
    for (; size - sent > PARTIAL_BYTES_MIN; sent += PARTIAL_BYTES_MIN) {
        pn.link_send(link, message + sent, PARTIAL_BYTES_MIN);
        if (write_into(transport, output) < 0)
            break; /* the rest is sent as one piece */
    }
    return sent;
}

static pn_delivery_t *send_one(pn_link_t *link, uint64_t tag, const char *message, size_t size, bool settled,
                               pn_transport_t *transport, PyObject *output)
{
    char name[TAG_BYTES];
    size_t name_size = 0;
    for (int shift = 8 * (TAG_BYTES - 1); shift >= 0; shift -= 8) /* big-endian, without leading zeros */
        if (name_size || tag >> shift || !shift)
            name[name_size++] = (char)(tag >> shift & 0xFF);
    pn_delivery_t *delivery = pn.delivery(link, (pn_bytes_t){name_size, name});
    size_t sent = output == Py_None ? 0 : send_pieces(link, message, size, transport, output);
    pn.link_send(link, message + sent, size - sent);
    if (settled)
        pn.delivery_settle(delivery);
    else
        pn.link_advance(link);
    return delivery;
}

/* Store a delivery under its tag. */
static bool note(PyObject *by_tag, unsigned long long tag, pn_delivery_t *delivery)
{
    PyObject *number = PyLong_FromUnsignedLongLong(tag), *address = PyLong_FromVoidPtr(delivery);
    bool done = number && address && !PyDict_SetItem(by_tag, number, address);
    Py_XDECREF(number);
    Py_XDECREF(address);
    return done;
}

/*
 * send(link, tag, messages, deliveries by tag or None, transport, list or None): send messages with consecutive tags;
 * pre-settled without `deliveries`. The frames of large messages are appended to the list, if there is one.
 */
static PyObject *send_messages(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_send", arguments, count, "iiOOiO"))
        return NULL;
    pn_link_t *link = at(arguments[0]);
    unsigned long long tag = PyLong_AsUnsignedLongLong(arguments[1]);
    bool settled = arguments[3] == Py_None;
    pn_transport_t *transport = arguments[5] == Py_None ? NULL : at(arguments[4]);
    PyObject *messages = link && !PyErr_Occurred() ? PyObject_GetIter(arguments[2]) : NULL, *message;
    while (messages && (message = PyIter_Next(messages))) {
        char *bytes;
        Py_ssize_t size;
        if (!PyBytes_AsStringAndSize(message, &bytes, &size)) {
            pn_delivery_t *delivery = send_one(link, tag, bytes, (size_t)size, settled, transport, arguments[5]);
            if (!settled && !PyErr_Occurred())
                note(arguments[3], tag, delivery);
            tag++;
        }
        Py_XDECREF(message);
        if (PyErr_Occurred())
            break;
    }
    Py_XDECREF(messages);
    return PyErr_Occurred() ? NULL : none();
}

/* write(transport, list) -> False when Proton will never send more: append the bytes that it wants to send. */
static PyObject *write_bytes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_write", arguments, count, "il"))
        return NULL;
    pn_transport_t *transport = at(arguments[0]);
    int lives = transport ? write_into(transport, arguments[1]) : -1;
    return lives < 0 ? NULL : PyBool_FromLong(lives);
}

/* --- one message per read, many connections: take, settle_all ----------------------------------------------------- */

/* Return the first handled event of the collector, and remove ignored ones before it; NULL without one. */
static pn_event_t *next_handled(pn_collector_t *collector)
{
    pn_event_t *event;
    while ((event = pn.collector_peek(collector))) {
        unsigned long long type = (unsigned long long)pn.event_type(event);
        if (type == pn.type_delivery || type == pn.type_flow || is_handled(type))
            break;
        pn.collector_pop(collector);
    }
    return event;
}

/* Return the peer's delivery of this event when it is complete, unsettled, without a state and the next of its link;
 * otherwise NULL. */
static pn_delivery_t *plain_delivery(pn_event_t *event, pn_link_t *link)
{
    pn_delivery_t *delivery = pn.event_delivery(event);
    if (!link || !delivery || pn.link_is_sender(link) || pn.link_current(link) != delivery)
        return NULL;
    bool plain = !pn.delivery_partial(delivery) && !pn.delivery_aborted(delivery) && !pn.delivery_settled(delivery);
    return plain && !pn.delivery_remote_state(delivery) ? delivery : NULL;
}

/*
 * Take the single message of the next event: (link, delivery, message, its header was removed, Proton has more events).
 * The header is removed when the message has this one and is usual. None when the next event is another one; NULL on
 * an error.
 */
static PyObject *take_message(pn_transport_t *transport, pn_collector_t *collector, const char *header, size_t start)
{
    static char message[SMALL_BYTES];
    pn_event_t *event = next_handled(collector);
    if (!event || (unsigned long long)pn.event_type(event) != pn.type_delivery)
        return none();
    pn_link_t *link = pn.event_link(event);
    pn_delivery_t *delivery = plain_delivery(event, link);
    size_t size = delivery ? pn.delivery_pending(delivery) : 0;
    if (!size || size < start || size > sizeof message) /* it may have started in an earlier read */
        return none();
    pn.link_recv(link, message, size);
    pn.link_advance(link);
    pn.collector_pop(collector);
    bool is_usual = !memcmp(message, header, start) && usual((const uint8_t *)message + start, size - start);
    bool more = next_handled(collector) || pn.transport_capacity(transport) < 0;
    size_t head = is_usual ? start : 0;
    return Py_BuildValue("NNNNN", PyLong_FromVoidPtr(link), PyLong_FromVoidPtr(delivery),
                         PyBytes_FromStringAndSize(message + head, (Py_ssize_t)(size - head)),
                         PyBool_FromLong(is_usual), PyBool_FromLong(more));
}

/*
 * take_single(transport, collector, header, bytes of one read) -> the single message in them: (link, delivery, message, its
 * header was removed, Proton has more events). None when they contain something else: Proton has the bytes, and
 * `collect` returns their events. At most `SMALL_BYTES`.
 */
static PyObject *take_single(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_take_single", arguments, count, "iibb"))
        return NULL;
    pn_transport_t *transport = at(arguments[0]);
    pn_collector_t *collector = transport ? at(arguments[1]) : NULL;
    char *header, *data;
    Py_ssize_t start, size;
    if (!collector || PyBytes_AsStringAndSize(arguments[2], &header, &start) ||
        PyBytes_AsStringAndSize(arguments[3], &data, &size))
        return NULL;
    push(transport, data, (size_t)size);
    return take_message(transport, collector, header, (size_t)start);
}

/* settle_all(deliveries): accept and settle these deliveries of the peer. */
static PyObject *settle_all(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_settle_all", arguments, count, "l"))
        return NULL;
    Py_ssize_t n = PyList_Size(arguments[0]);
    for (Py_ssize_t i = 0; i < n; i++) {
        pn_delivery_t *delivery = at(PyList_GetItem(arguments[0], i));
        if (!delivery)
            return NULL;
        pn.delivery_update(delivery, STATE_ACCEPTED);
        pn.delivery_settle(delivery);
    }
    return none();
}

/* --- state: credit, has_output, held ------------------------------------------------------------------------------ */

/* credit(link) -> (messages that may be sent, the peer drains) */
static PyObject *credit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_credit", arguments, count, "i"))
        return NULL;
    pn_link_t *link = at(arguments[0]);
    return link ? Py_BuildValue("iN", pn.link_credit(link), PyBool_FromLong(pn.link_get_drain(link))) : NULL;
}

/* has_output(transport) -> Proton has something to send, or will never have again. */
static PyObject *has_output(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_has_output", arguments, count, "i"))
        return NULL;
    pn_transport_t *transport = at(arguments[0]);
    return transport ? PyBool_FromLong(pn.transport_pending(transport) != 0) : NULL;
}

/* held_bytes(sessions) -> bytes of messages that are incomplete, not taken or not sent. */
static PyObject *held_bytes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!may_call("amqp_held_bytes", arguments, count, "O"))
        return NULL;
    PyObject *addresses = PyObject_GetIter(arguments[0]), *address;
    unsigned long long bytes = 0;
    while (addresses && (address = PyIter_Next(addresses))) {
        pn_session_t *session = at(address);
        Py_XDECREF(address);
        if (!session)
            break;
        bytes += (unsigned long long)(pn.session_incoming_bytes(session) + pn.session_outgoing_bytes(session));
    }
    Py_XDECREF(addresses);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(bytes);
}

static PyMethodDef functions[] = {
    FUNCTION("amqp_collect", collect),
    FUNCTION("amqp_receive", receive),
    FUNCTION("amqp_read", read_bytes),
    FUNCTION("amqp_settle", settle),
    FUNCTION("amqp_forget", forget),
    FUNCTION("amqp_forget_accepted", forget_accepted),
    FUNCTION("amqp_malformed_at", malformed_at),
    FUNCTION("amqp_strip_header", strip_header),
    FUNCTION("amqp_send", send_messages),
    FUNCTION("amqp_write", write_bytes),
    FUNCTION("amqp_take_single", take_single),
    FUNCTION("amqp_settle_all", settle_all),
    FUNCTION("amqp_credit", credit),
    FUNCTION("amqp_has_output", has_output),
    FUNCTION("amqp_held_bytes", held_bytes),
    FUNCTION("bind_proton", bind_proton),
    {NULL, NULL, 0, NULL},
};

int add_engine_loops(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) || PyModule_AddIntMacro(module, PIECE_BYTES) ||
           PyModule_AddIntMacro(module, PARTIAL_BYTES_MIN) || PyModule_AddIntMacro(module, QUEUED_FEW) ||
           PyModule_AddIntMacro(module, SMALL_BYTES);
}
