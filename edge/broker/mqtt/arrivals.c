/*
 * What all MQTT connections bring in a turn of the loop: PUBLISH packets that say nothing new, read without a call of
 * Python, put together by log, and answered together.
 *
 * A *lane* is the reading side of one connection. It takes PUBLISH packets of QoS 0 and 1 whose first byte, topic name
 * and properties it has been taught, and gives everything else to the machine (`inbound.py`), bytes untouched and in
 * order. What it took stands in *stretches*: messages that are stored, delivered and answered as one, or one run that the
 * router takes by itself. `arrivals.py` is the other side: it decides about everything that is not plain.
 *
 * A lane reads the bytes that the transport of its connection received, and its answers leave with what else the
 * connection writes at the end of the turn. It knows no socket.
 */
#include "../../../bridge/native.h"

/* --- MQTT, and what is known of it here -------------------------------------------------------------------------- */

enum {
    PUBLISH_0 = 0x30,
    PUBLISH_1 = 0x32,
    PUBLISH_BYTES_MIN = 5, /* a topic name of one character at QoS 0 before MQTT 5 */
    SHORT_LENGTH_MAX = 127,
    PUBACK_BYTES = 4,
    PROPERTIES_MAX = 127, /* whose length is one byte */
    FLAG_DURABLE = 0x10,  /* bridge.message.DURABLE */
    TOPICS_LEAST = 16,
    NAME_BYTES_MAX = 254,    /* of a topic that is taken without being taught: with its length HEAD_BYTES_MAX */
    LEVELS_MAX = 128,        /* of its name: edge.broker.limits.TOPIC_LEVELS_MAX */
    PREFIXES_MAX = 4,        /* of one lane: more than a device has */
    TOPIC_COST = 160,        /* bytes a topic takes beside its name and properties: its capsule, and its place */
    ANSWERS_KEPT_MAX = 1024, /* bytes for answers that a lane keeps for the next ones */
};

static const char LANE[] = "waypost.lane", TURN[] = "waypost.turn", COLUMN[] = "waypost.column", LOG[] = "waypost.log",
                  STRETCH[] = "waypost.stretch", TOPIC[] = "waypost.topic", PREFIX[] = "waypost.prefix";

/* Messages of a turn that go to one log. */
struct log {
    PyObject *sink; /* the object of Python that stands for it */
    PyObject *runs; /* a list while the open stretch has some */
    size_t bytes, messages;
};

/* Where messages go. */
struct column {
    PyObject *log;  /* a capsule; NULL: they are not kept */
    PyObject *live; /* the object of Python that stands for who gets them before; NULL: nobody */
};

/* Where messages go to all topics whose names begin alike. */
struct prefix {
    PyObject *columns[2]; /* of QoS 0 and 1: capsules; NULL: it is the machine's */
    uint64_t generation;  /* of routes, when the columns were told: by others they count no more */
    uint32_t size;
    uint8_t bytes[]; /* of the names, with the slash they end with */
};

/* A topic name and properties that were checked: `head` is the topic name with its length and the properties with
 * theirs, as they stand in the packet but for the packet identifier between them. */
struct topic {
    PyObject *address, *properties, *column; /* the capsule of a column; NULL: it is the machine's */
    PyObject *prefix;                        /* the capsule of the one its name has; NULL: none */
    uint64_t generation;                     /* of routes, when `column` was told: by others the router is asked */
    uint32_t hash, head_bytes;
    uint8_t first;
    uint8_t head[];
};

struct lane {
    struct turn *turn;
    PyObject *turn_capsule, *origin, *device, *inbound;
    PyObject *slow, *writes; /* NULL once the lane is closed */
    struct lane *next_answered;
    uint8_t *answers;
    size_t answer_bytes, answer_room;
    PyObject *prefixes[PREFIXES_MAX]; /* capsules: topics whose names begin so need not be taught */
    PyObject **topics; /* capsules, by hash; as many as a power of two, at most half of them used */
    uint32_t topics_room, topics_used, topics_max;
    size_t topic_bytes;
    long length_max, receive_maximum;
    Py_ssize_t missing; /* bytes of the packet that the machine has the beginning of, as far as it knows */
    uint64_t waits_in; /* number of the last turn in which it took something */
    double heard_s;
    PyObject *capsule; /* its own: not a reference */
    uint8_t version;
    bool open, answered, behind;
};

/* Messages of one lane that came one behind the other. */
struct entry {
    PyObject *lane, *run;
    uint32_t ids;
    enum { NOW, BEHIND, KEPT } answer; /* at once, behind what the client sent before, or when it is kept */
};

/* Messages one behind the other, of those that somebody gets, that go to the same. */
struct offer {
    PyObject *live, *runs, *origins; /* an origin for each run */
    size_t qos1_messages;
};

/* What is stored and answered as one. */
struct stretch {
    struct entry *entries;
    struct offer *offers;
    uint16_t *ids;
    size_t entries_used, entries_room, offers_used, offers_room, ids_used, ids_room, messages;
    PyObject *logs; /* capsules of those it has messages for */
};

struct turn {
    PyObject *begin, *publish, *run; /* the first two are NULL once it is closed */
    PyObject *stretches;             /* a list: of capsules, and of tuples for what the router takes by itself */
    PyObject *open;                  /* the capsule of the last of them, where it is one: not a reference */
    PyObject *received_at, *flags[3];
    uint64_t number, generation;
    size_t messages; /* taken in this turn */
    double now_s;
    bool begun;
};

static PyObject *OUTSTANDING;

static void *at(PyObject *capsule, const char *kind)
{
    return PyCapsule_GetPointer(capsule, kind);
}

/* Put a new reference, or NULL, in a place. What was there is released last: that may run Python code. */
static void replace(PyObject **place, PyObject *object)
{
    PyObject *before = *place;
    *place = object;
    Py_XDECREF(before);
}

/* Makes room for one more of `size` bytes; false with an error where there is none. */
static bool room(void **items, size_t used, size_t *room_for, size_t size)
{
    if (used < *room_for)
        return true;
    size_t more = *room_for ? 2 * *room_for : 8;
    void *grown = PyMem_Realloc(*items, more * size);
    if (!grown) {
        PyErr_NoMemory();
        return false;
    }
    *items = grown, *room_for = more;
    return true;
}

/* --- topics ------------------------------------------------------------------------------------------------------ */

static uint32_t hash_of(uint32_t hash, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static void free_topic(PyObject *capsule)
{
    struct topic *topic = at(capsule, TOPIC);
    Py_XDECREF(topic->address);
    Py_XDECREF(topic->properties);
    Py_XDECREF(topic->column);
    Py_XDECREF(topic->prefix);
    PyMem_Free(topic);
}

static void forget_topics(struct lane *lane)
{
    PyObject **topics = lane->topics;
    uint32_t topics_room = lane->topics_room;
    lane->topics = NULL, lane->topics_room = lane->topics_used = 0, lane->topic_bytes = 0;
    for (uint32_t i = 0; i < topics_room; i++)
        Py_XDECREF(topics[i]);
    PyMem_Free(topics);
}

static void forget_prefixes(struct lane *lane)
{
    for (int i = 0; i < PREFIXES_MAX; i++)
        replace(&lane->prefixes[i], NULL);
}

/* A packet as far as it has to be read. */
struct packet {
    const uint8_t *head, *block; /* topic name with its length; properties with theirs */
    size_t head_bytes, block_bytes;
    uint32_t hash;
    uint8_t first;
};

static bool is_of(const struct topic *topic, const struct packet *packet)
{
    return topic->first == packet->first && topic->head_bytes == packet->head_bytes + packet->block_bytes &&
           !__builtin_memcmp(topic->head, packet->head, packet->head_bytes) &&
           !__builtin_memcmp(topic->head + packet->head_bytes, packet->block, packet->block_bytes);
}

/* The slot of a topic, or the empty one where it would be; there always is one. */
static PyObject **slot_of(const struct lane *lane, const struct packet *packet)
{
    uint32_t mask = lane->topics_room - 1;
    for (uint32_t i = packet->hash & mask;; i = (i + 1) & mask) {
        PyObject *capsule = lane->topics[i];
        if (!capsule)
            return &lane->topics[i];
        const struct topic *topic = at(capsule, TOPIC);
        if (topic->hash == packet->hash && is_of(topic, packet))
            return &lane->topics[i];
    }
}

static bool more_topics(struct lane *lane)
{
    PyObject **grown;
    if (lane->topics_used >= lane->topics_max)
        forget_topics(lane);
    if (2 * lane->topics_used < lane->topics_room)
        return true;
    uint32_t room_now = lane->topics_room, mask = (room_now ? 2 * room_now : TOPICS_LEAST) - 1;
    if (!(grown = PyMem_Calloc(mask + 1, sizeof *grown))) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = 0; i < room_now; i++) {
        if (!lane->topics[i])
            continue;
        uint32_t place = ((struct topic *)at(lane->topics[i], TOPIC))->hash & mask;
        while (grown[place])
            place = (place + 1) & mask;
        grown[place] = lane->topics[i];
    }
    PyMem_Free(lane->topics);
    lane->topics = grown, lane->topics_room = mask + 1;
    return true;
}

/* A topic that is not known yet: a new reference to its capsule; NULL with an error. */
static PyObject *add_topic(struct lane *lane, const struct packet *packet, PyObject *address, PyObject *properties)
{
    if (!more_topics(lane))
        return NULL;
    struct topic *topic = PyMem_Calloc(1, sizeof *topic + packet->head_bytes + packet->block_bytes);
    if (!topic)
        return PyErr_NoMemory();
    topic->hash = packet->hash, topic->first = packet->first;
    topic->head_bytes = (uint32_t)(packet->head_bytes + packet->block_bytes);
    __builtin_memcpy(topic->head, packet->head, packet->head_bytes);
    __builtin_memcpy(topic->head + packet->head_bytes, packet->block, packet->block_bytes);
    PyObject **slot = slot_of(lane, packet);
    if (!(*slot = PyCapsule_New(topic, TOPIC, free_topic))) {
        PyMem_Free(topic);
        return NULL;
    }
    topic->address = keep(address), topic->properties = keep(properties);
    lane->topics_used++, lane->topic_bytes += TOPIC_COST + topic->head_bytes;
    return keep(*slot);
}

static bool tell(const struct turn *turn, struct topic *topic, PyObject *column)
{
    bool plain = column != Py_None;
    if (!topic || (plain && !at(column, COLUMN)))
        return false;
    topic->generation = turn->generation;
    replace(&topic->column, plain ? keep(column) : NULL);
    return true;
}

static uint32_t hash_of_packet(const struct packet *packet)
{
    return hash_of(hash_of(packet->first, packet->head, packet->head_bytes), packet->block, packet->block_bytes);
}

/* learn(lane, first byte, topic name with its length, properties with theirs, address, properties forwarded, column) */
static PyObject *learn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_learn", arguments, count, "OibbsbO"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    long first = lane ? PyLong_AsLong(arguments[1]) : -1;
    char *head, *block;
    Py_ssize_t head_bytes, block_bytes;
    if (!lane || PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[2], &head, &head_bytes) ||
        PyBytes_AsStringAndSize(arguments[3], &block, &block_bytes))
        return NULL;
    struct packet packet = {(uint8_t *)head, (uint8_t *)block, (size_t)head_bytes, (size_t)block_bytes, 0, (uint8_t)first};
    packet.hash = hash_of_packet(&packet);
    PyObject *topic = lane->topics_room ? keep(*slot_of(lane, &packet)) : NULL;
    if (!topic && !(topic = add_topic(lane, &packet, arguments[4], arguments[5])))
        return NULL;
    bool told = tell(lane->turn, at(topic, TOPIC), arguments[6]);
    Py_XDECREF(topic);
    return told ? none() : NULL;
}

/* direct(turn, topic, column or None) -> (prefix, what its names begin with) of the topic, or None: what comes to it goes
 * where the column says, as long as routes are as now; or is for the machine. */
static PyObject *direct(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_direct", arguments, count, "OOO"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    struct topic *topic = turn ? at(arguments[1], TOPIC) : NULL;
    if (!topic || !tell(turn, topic, arguments[2]))
        return NULL;
    const struct prefix *prefix = topic->prefix ? at(topic->prefix, PREFIX) : NULL;
    if (!prefix)
        return none();
    const char *name = (const char *)prefix->bytes;
    return Py_BuildValue("ON", topic->prefix, PyUnicode_FromStringAndSize(name, (Py_ssize_t)prefix->size));
}

/* --- prefixes: topics that need not be taught -------------------------------------------------------------------- */

static void free_prefix(PyObject *capsule)
{
    struct prefix *prefix = at(capsule, PREFIX);
    Py_XDECREF(prefix->columns[0]);
    Py_XDECREF(prefix->columns[1]);
    PyMem_Free(prefix);
}

/* prefix(what names begin with) */
static PyObject *make_prefix(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_prefix", arguments, count, "b"))
        return NULL;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &size))
        return NULL;
    struct prefix *prefix = PyMem_Calloc(1, sizeof *prefix + (size_t)size);
    if (!prefix)
        return PyErr_NoMemory();
    prefix->size = (uint32_t)size;
    __builtin_memcpy(prefix->bytes, bytes, (size_t)size);
    PyObject *capsule = PyCapsule_New(prefix, PREFIX, free_prefix);
    if (!capsule)
        PyMem_Free(prefix);
    return capsule;
}

/* direct_all(turn, prefix, column of QoS 0 or None, of QoS 1): as `direct`, for all topics whose names begin so. */
static PyObject *direct_all(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_direct_all", arguments, count, "OOOO"))
        return NULL;
    const struct turn *turn = at(arguments[0], TURN);
    struct prefix *prefix = turn ? at(arguments[1], PREFIX) : NULL;
    if (!prefix)
        return NULL;
    for (int qos = 0; qos < 2; qos++) {
        PyObject *column = arguments[2 + qos] == Py_None ? NULL : arguments[2 + qos];
        if (column && !at(column, COLUMN))
            return NULL;
        replace(&prefix->columns[qos], keep(column));
    }
    prefix->generation = turn->generation;
    return none();
}

/* permit(lane, prefix): the client may send to all topics whose names begin so. */
static PyObject *permit(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_permit", arguments, count, "OO"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane || !at(arguments[1], PREFIX))
        return NULL;
    for (int i = 0; i < PREFIXES_MAX; i++)
        if (lane->prefixes[i] == arguments[1])
            return none();
    PyObject *last = lane->prefixes[PREFIXES_MAX - 1];
    for (int i = PREFIXES_MAX - 1; i; i--)
        lane->prefixes[i] = lane->prefixes[i - 1];
    lane->prefixes[0] = keep(arguments[1]);
    Py_XDECREF(last);
    return none();
}

/* A topic name as devices have them: others have more to be checked. */
static bool is_plain(const uint8_t *name, size_t size)
{
    size_t levels = 1;
    if (!size || size > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (name[i] < ' ' || name[i] > '~' || name[i] == '+' || name[i] == '#')
            return false;
        levels += name[i] == '/';
    }
    return levels <= LEVELS_MAX;
}

/* What the prefix of its name says of a topic, where that counts. */
static void follow_prefix(struct topic *topic, const struct turn *turn)
{
    const struct prefix *prefix = topic->prefix ? at(topic->prefix, PREFIX) : NULL;
    if (!prefix || prefix->generation != turn->generation)
        return;
    topic->generation = prefix->generation;
    replace(&topic->column, keep(prefix->columns[topic->first == PUBLISH_1]));
}

/* Add the topic of a packet whose name begins as the client may send to, and which has no properties. Return a new
 * reference to it; else NULL. */
static PyObject *take_topic(struct lane *lane, const struct packet *packet)
{
    const uint8_t *name = packet->head + 2;
    size_t size = packet->head_bytes - 2;
    PyObject *found = NULL;
    for (int i = 0; i < PREFIXES_MAX && lane->prefixes[i] && !found; i++) {
        const struct prefix *prefix = at(lane->prefixes[i], PREFIX);
        if (prefix->size <= size && !__builtin_memcmp(prefix->bytes, name, prefix->size))
            found = lane->prefixes[i];
    }
    if (!found || packet->block_bytes > 1 || !is_plain(name, size))
        return NULL;
    keep(found);
    PyObject *address = PyUnicode_FromStringAndSize((const char *)name, (Py_ssize_t)size);
    PyObject *properties = address ? PyBytes_FromStringAndSize(NULL, 0) : NULL;
    PyObject *topic = properties ? add_topic(lane, packet, address, properties) : NULL;
    if (topic)
        replace(&((struct topic *)at(topic, TOPIC))->prefix, keep(found));
    else
        PyErr_Clear(); /* the machine takes it */
    Py_XDECREF(found);
    Py_XDECREF(address);
    Py_XDECREF(properties);
    return topic;
}

/* --- columns and stretches --------------------------------------------------------------------------------------- */

static void free_log(PyObject *capsule)
{
    struct log *log = at(capsule, LOG);
    Py_XDECREF(log->sink);
    Py_XDECREF(log->runs);
    PyMem_Free(log);
}

/* log(sink) */
static PyObject *make_log(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_log", arguments, count, "O"))
        return NULL;
    struct log *log = PyMem_Calloc(1, sizeof *log);
    if (!log)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(log, LOG, free_log);
    if (!capsule)
        PyMem_Free(log);
    else
        log->sink = keep(arguments[0]);
    return capsule;
}

static void free_column(PyObject *capsule)
{
    struct column *column = at(capsule, COLUMN);
    Py_XDECREF(column->log);
    Py_XDECREF(column->live);
    PyMem_Free(column);
}

/* column(log or None, who gets the messages before or None) */
static PyObject *make_column(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_column", arguments, count, "OO"))
        return NULL;
    PyObject *log = arguments[0] == Py_None ? NULL : arguments[0];
    if (log && !at(log, LOG))
        return NULL;
    struct column *column = PyMem_Calloc(1, sizeof *column);
    if (!column)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(column, COLUMN, free_column);
    if (!capsule)
        PyMem_Free(column);
    else
        column->log = keep(log), column->live = arguments[1] == Py_None ? NULL : keep(arguments[1]);
    return capsule;
}

static void free_stretch(PyObject *capsule)
{
    struct stretch *stretch = at(capsule, STRETCH);
    for (size_t i = 0; i < stretch->entries_used; i++)
        Py_XDECREF(stretch->entries[i].lane), Py_XDECREF(stretch->entries[i].run);
    for (size_t i = 0; i < stretch->offers_used; i++) {
        struct offer *offer = &stretch->offers[i];
        Py_XDECREF(offer->live), Py_XDECREF(offer->runs), Py_XDECREF(offer->origins);
    }
    PyMem_Free(stretch->entries);
    PyMem_Free(stretch->offers);
    PyMem_Free(stretch->ids);
    Py_XDECREF(stretch->logs);
    PyMem_Free(stretch);
}

/* Return a new reference to the capsule of the open stretch; NULL with an error. */
static PyObject *open_stretch(struct turn *turn)
{
    if (turn->open)
        return keep(turn->open);
    struct stretch *stretch = PyMem_Calloc(1, sizeof *stretch);
    if (!stretch) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(stretch, STRETCH, free_stretch);
    if (!capsule) {
        PyMem_Free(stretch);
        return NULL;
    }
    if ((stretch->logs = PyList_New(0)) && !PyList_Append(turn->stretches, capsule))
        return turn->open = capsule, capsule;
    Py_XDECREF(capsule);
    return NULL;
}

/* Take what a log has of the stretch that ends: (sink, runs, bytes, messages). */
static PyObject *take_from_log(PyObject *capsule)
{
    struct log *log = capsule ? at(capsule, LOG) : NULL;
    if (!log)
        return NULL;
    PyObject *runs = log->runs;
    size_t bytes = log->bytes, messages = log->messages;
    log->runs = NULL, log->bytes = log->messages = 0;
    return Py_BuildValue("ONnn", log->sink, runs, (Py_ssize_t)bytes, (Py_ssize_t)messages);
}

/* Nothing more joins the open stretch: its logs become (sink, runs, bytes, messages), and begin anew. */
static bool end_stretch(struct turn *turn)
{
    if (!turn->open)
        return true;
    PyObject *capsule = keep(turn->open), *rows = PyList_New(0);
    struct stretch *stretch = at(capsule, STRETCH);
    turn->open = NULL;
    for (Py_ssize_t i = 0; rows && i < PyList_Size(stretch->logs); i++) {
        PyObject *log = listed(stretch->logs, i);
        append_or_drop(&rows, take_from_log(log));
        Py_XDECREF(log);
    }
    bool done = rows != NULL;
    if (done)
        replace(&stretch->logs, rows);
    Py_XDECREF(capsule);
    return done;
}

static bool add_to_log(struct stretch *stretch, PyObject *capsule, PyObject *run, size_t messages, size_t bytes)
{
    struct log *log = at(capsule, LOG);
    if (!log->runs && (!(log->runs = PyList_New(0)) || PyList_Append(stretch->logs, capsule)))
        return false;
    log->bytes += bytes, log->messages += messages;
    return !PyList_Append(log->runs, run);
}

static bool add_to_offer(struct stretch *stretch, PyObject *live, PyObject *run, PyObject *origin, size_t qos1_messages)
{
    struct offer *last = stretch->offers_used ? &stretch->offers[stretch->offers_used - 1] : NULL;
    if (!last || last->live != live) {
        PyObject *runs = PyList_New(0), *origins = PyList_New(0);
        if (!runs || !origins ||
            !room((void **)&stretch->offers, stretch->offers_used, &stretch->offers_room, sizeof *last)) {
            Py_XDECREF(runs);
            Py_XDECREF(origins);
            return false;
        }
        last = &stretch->offers[stretch->offers_used++];
        *last = (struct offer){keep(live), runs, origins, 0};
    }
    last->qos1_messages += qos1_messages;
    return !PyList_Append(last->runs, run) && !PyList_Append(last->origins, origin);
}

static bool add_to_stretch(struct stretch *stretch, PyObject *lane, const struct column *column, PyObject *run,
                           const uint16_t *ids, size_t ids_used, size_t messages, size_t bytes)
{
    PyObject *origin = ((struct lane *)at(lane, LANE))->origin;
    if (column->log && !add_to_log(stretch, column->log, run, messages, bytes))
        return false;
    if (column->live && !add_to_offer(stretch, column->live, run, origin, ids_used))
        return false;
    while (stretch->ids_room < stretch->ids_used + ids_used)
        if (!room((void **)&stretch->ids, stretch->ids_room, &stretch->ids_room, sizeof *stretch->ids))
            return false;
    if (!room((void **)&stretch->entries, stretch->entries_used, &stretch->entries_room, sizeof *stretch->entries))
        return false;
    if (ids_used)
        __builtin_memcpy(stretch->ids + stretch->ids_used, ids, ids_used * sizeof *ids);
    stretch->ids_used += ids_used, stretch->messages += messages;
    stretch->entries[stretch->entries_used++] =
        (struct entry){keep(lane), keep(run), (uint32_t)ids_used, column->log ? KEPT : NOW};
    return true;
}

static bool join(struct turn *turn, PyObject *lane, PyObject *column, PyObject *run, const uint16_t *ids, size_t ids_used,
                 size_t messages, size_t bytes)
{
    PyObject *capsule = open_stretch(turn);
    bool joined = capsule && add_to_stretch(at(capsule, STRETCH), lane, at(column, COLUMN), run, ids, ids_used, messages,
                                            bytes);
    Py_XDECREF(capsule);
    return joined;
}

static PyObject *list_ids(const uint16_t *ids, size_t count)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++)
        append_or_drop(&list, PyLong_FromLong(ids[i]));
    return list;
}

/* What the router takes by itself: (origin, run, packet identifiers, topic). */
static bool stand_alone(struct turn *turn, const struct lane *lane, PyObject *topic, PyObject *run, const uint16_t *ids,
                        size_t ids_used)
{
    PyObject *tokens = list_ids(ids, ids_used);
    PyObject *row = tokens && end_stretch(turn) ? Py_BuildValue("OOOO", lane->origin, run, tokens, topic) : NULL;
    bool added = append(turn->stretches, row);
    Py_XDECREF(tokens);
    return added;
}

/* --- a turn ------------------------------------------------------------------------------------------------------ */

static void free_turn(PyObject *capsule)
{
    struct turn *turn = at(capsule, TURN);
    Py_XDECREF(turn->begin);
    Py_XDECREF(turn->publish);
    Py_XDECREF(turn->run);
    Py_XDECREF(turn->stretches);
    Py_XDECREF(turn->received_at);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(turn->flags[i]);
    PyMem_Free(turn);
}

/* open(begin, publish, Run): `begin` is called by the first message of a turn, and calls `stamp`; `publish` has to take
 * what is there. */
static PyObject *make_turn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_turn", arguments, count, "OOO"))
        return NULL;
    struct turn *turn = PyMem_Calloc(1, sizeof *turn);
    PyObject *capsule = turn ? PyCapsule_New(turn, TURN, free_turn) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(turn);
        return NULL;
    }
    turn->begin = keep(arguments[0]), turn->publish = keep(arguments[1]), turn->run = keep(arguments[2]);
    turn->number = turn->generation = 1;
    if (!(turn->stretches = PyList_New(0)))
        replace(&capsule, NULL);
    return capsule;
}

/* close(turn): nobody is called any more. */
static PyObject *close_turn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_close_turn", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    if (!turn)
        return NULL;
    replace(&turn->begin, NULL);
    replace(&turn->publish, NULL);
    return none();
}

/* stamp(turn, seconds, when it was received, flags of QoS 0, flags of QoS 1): of what comes in this turn */
static PyObject *stamp(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_stamp", arguments, count, "OOOOO"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    double now_s = turn ? PyFloat_AsDouble(arguments[1]) : 0;
    if (!turn || PyErr_Occurred())
        return NULL;
    turn->now_s = now_s;
    replace(&turn->received_at, keep(arguments[2]));
    replace(&turn->flags[0], keep(arguments[3]));
    replace(&turn->flags[1], keep(arguments[4]));
    return none();
}

/* forget(turn): the routes that topics were told are none any more. */
static PyObject *forget_routes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_forget_routes", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    if (!turn)
        return NULL;
    turn->generation++;
    return none();
}

/* take(turn) -> [stretch or (origin, run, packet identifiers, topic)] in the order they came; the turn is over. */
static PyObject *take(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_take", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    PyObject *fresh = turn ? PyList_New(0) : NULL;
    if (!fresh || !end_stretch(turn)) {
        Py_XDECREF(fresh);
        return NULL;
    }
    PyObject *stretches = turn->stretches;
    turn->stretches = fresh, turn->begun = false, turn->number++, turn->messages = 0;
    return stretches;
}

/* --- a lane ------------------------------------------------------------------------------------------------------ */

static void drop_calls(struct lane *lane)
{
    PyObject *calls[] = {lane->slow, lane->writes, lane->inbound};
    lane->slow = lane->writes = lane->inbound = NULL;
    lane->open = false;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        Py_XDECREF(calls[i]);
    forget_topics(lane);
    forget_prefixes(lane);
}

static void free_lane(PyObject *capsule)
{
    struct lane *lane = at(capsule, LANE);
    drop_calls(lane);
    Py_XDECREF(lane->turn_capsule);
    Py_XDECREF(lane->origin);
    Py_XDECREF(lane->device);
    PyMem_Free(lane->answers);
    PyMem_Free(lane);
}

/* The next packet where it is a complete PUBLISH of QoS 0 or 1; where it ends, or 0. */
static size_t next_packet(const struct lane *lane, const uint8_t *data, size_t pos, size_t size, struct packet *packet,
                          size_t *at_id, size_t *at_body)
{
    if (size - pos < PUBLISH_BYTES_MIN)
        return 0;
    uint8_t first = data[pos];
    if (first != PUBLISH_1 && first != PUBLISH_0)
        return 0;
    size_t length = data[pos + 1], body = pos + 2;
    if (length > SHORT_LENGTH_MAX) {
        if (!data[body] || data[body] > SHORT_LENGTH_MAX)
            return 0;
        length += ((size_t)data[body] - 1) << 7;
        body++;
    }
    size_t stop = body + length;
    if (stop > size || length > (size_t)lane->length_max || length < 2)
        return 0;
    size_t head = 2 + ((size_t)data[body] << 8 | data[body + 1]), id_bytes = first == PUBLISH_0 ? 0 : 2;
    size_t at_block = body + head + id_bytes, block = 0;
    if (at_block + (lane->version == 5) > stop)
        return 0;
    if (lane->version == 5) {
        if (data[at_block] > PROPERTIES_MAX)
            return 0;
        block = 1 + data[at_block];
        if (at_block + block > stop)
            return 0;
    }
    *packet = (struct packet){data + body, data + at_block, head, block, 0, first};
    *at_id = body + head, *at_body = at_block + block;
    return stop;
}

/* Return a new reference to the topic of a packet where the router takes it from us; else NULL. */
static PyObject *known(struct lane *lane, struct packet *packet)
{
    if (!lane->topics_room)
        return NULL;
    packet->hash = hash_of_packet(packet);
    PyObject *capsule = keep(*slot_of(lane, packet));
    if (!capsule && !(capsule = take_topic(lane, packet)))
        return NULL;
    struct topic *topic = at(capsule, TOPIC);
    if (topic->generation != lane->turn->generation)
        follow_prefix(topic, lane->turn);
    if (!topic->column && topic->generation == lane->turn->generation)
        replace(&capsule, NULL);
    return capsule;
}

enum { ALIKE_MAX = 1024 }; /* messages of one run */

/* Of a read: `LONG` ones let others have a turn before the next, `LATE` ones wait for one. */
enum kind { USUAL, LONG, LATE };
enum {
    LARGE_BYTES = 2 * 1024,  /* as bridge.transport.slow_lane has it */
    LONG_BYTES = 128 * 1024, /* as bridge.transport.driver has it: LARGE_READ_BYTES */
    A_TURN_MAX = 4000,       /* messages of a turn, which take 5 ms here and about 15 in all; larger reads are late then */
};

/* Something of this turn is for us; false with an error. */
static bool begin_turn(struct turn *turn)
{
    PyObject *begin = keep(turn->begin), *done = PyObject_CallNoArgs(begin);
    Py_XDECREF(begin);
    if (done) {
        Py_XDECREF(done);
        turn->begun = true;
    }
    return done != NULL;
}

/* Messages of one topic that stand one behind the other in what was received. */
struct alike {
    PyObject *bodies;
    uint16_t ids[ALIKE_MAX];
    size_t ids_used, messages, bytes;
};

/*
 * Take the packets at `*pos` that begin like `packet`, as far as they are complete and `room_left` allows. `stop`: where
 * the first of them ends. False with an error.
 */
static bool take_alike(const struct lane *lane, const struct topic *topic, const uint8_t *data, size_t size, size_t *pos,
                       size_t stop, size_t at_id, size_t at_body, struct packet *packet, long *room_left,
                       struct alike *found)
{
    bool with_id = packet->first != PUBLISH_0;
    do {
        if (with_id) {
            uint16_t id = (uint16_t)(data[at_id] << 8 | data[at_id + 1]);
            if (!id || *room_left <= 0)
                break;
            found->ids[found->ids_used++] = id;
            --*room_left;
        }
        PyObject *body = PyBytes_FromStringAndSize((const char *)data + at_body, (Py_ssize_t)(stop - at_body));
        if (!append(found->bodies, body))
            return false;
        found->bytes += stop - at_body, *pos = stop, found->messages++;
        stop = next_packet(lane, data, stop, size, packet, &at_id, &at_body);
    } while (stop && found->messages < ALIKE_MAX && is_of(topic, packet));
    return true;
}

/* Have messages join the open stretch, or be taken by the router by themselves. False with an error. */
static bool put_run(struct lane *lane, PyObject *lane_capsule, PyObject *capsule, bool with_id, const struct alike *found)
{
    struct turn *turn = lane->turn;
    const struct topic *topic = at(capsule, TOPIC);
    PyObject *type = keep(turn->run), *flags = keep(turn->flags[with_id]), *received_at = keep(turn->received_at);
    PyObject *run = PyObject_CallFunctionObjArgs(type, topic->address, lane->device, flags, topic->properties,
                                                 found->bodies, received_at, NULL);
    PyObject *column = topic->generation == turn->generation ? keep(topic->column) : NULL;
    bool joined = run != NULL;
    turn->messages += found->messages;
    if (joined && column)
        joined = join(turn, lane_capsule, column, run, found->ids, found->ids_used, found->messages, found->bytes);
    else if (joined)
        joined = stand_alone(turn, lane, capsule, run, found->ids, found->ids_used);
    PyObject *own[] = {type, flags, received_at, run, column};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        Py_XDECREF(own[i]);
    return joined;
}

/*
 * Take a run of the packets at `*pos`: those that begin like the first of them, as far as they are complete and `room_left`
 * allows. Returns 1 where one was taken, 0 where the packet at `*pos` is not for us, -1 on an error.
 */
static int take_run(struct lane *lane, PyObject *lane_capsule, const uint8_t *data, size_t size, size_t *pos,
                    long *room_left)
{
    struct packet packet;
    size_t at_id, at_body, stop = next_packet(lane, data, *pos, size, &packet, &at_id, &at_body);
    PyObject *capsule = stop ? known(lane, &packet) : NULL;
    if (!capsule)
        return 0;
    if (!lane->turn->begun) {
        replace(&capsule, NULL);
        if (!begin_turn(lane->turn))
            return -1;
        if (!(capsule = known(lane, &packet))) /* routes may have changed with it */
            return 0;
    }
    struct alike found;
    bool with_id = packet.first != PUBLISH_0;
    found.bodies = PyList_New(0), found.ids_used = found.messages = found.bytes = 0;
    bool done = found.bodies && take_alike(lane, at(capsule, TOPIC), data, size, pos, stop, at_id, at_body, &packet,
                                           room_left, &found);
    if (done && found.messages)
        done = put_run(lane, lane_capsule, capsule, with_id, &found);
    Py_XDECREF(found.bodies);
    Py_XDECREF(capsule);
    return done ? found.messages > 0 : -1;
}

/* Takes what it can of `data`; returns where it stopped, -1 on an error. */
static Py_ssize_t read_packets(struct lane *lane, PyObject *capsule, const uint8_t *data, size_t size)
{
    struct turn *turn = lane->turn;
    size_t pos = 0;
    if (!turn->begin)
        return 0;
    PyObject *inbound = keep(lane->inbound), *number = field(inbound, OUTSTANDING);
    long outstanding = number ? PyLong_AsLong(number) : -1, room_left = lane->receive_maximum - outstanding;
    Py_XDECREF(number);
    int taken = PyErr_Occurred() ? -1 : 1;
    while (taken > 0 && pos < size && turn->begin) /* a call may close it */
        taken = take_run(lane, capsule, data, size, &pos, &room_left);
    if (pos)
        lane->waits_in = turn->number, lane->heard_s = turn->now_s;
    if (taken >= 0 && lane->receive_maximum - room_left != outstanding) {
        number = PyLong_FromLong(lane->receive_maximum - room_left);
        if (!number || PyObject_SetAttr(inbound, OUTSTANDING, number))
            taken = -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(inbound);
    return taken < 0 ? -1 : (Py_ssize_t)pos;
}

/* Has the machine take bytes, behind what the lane took before. `kind`: of the read they are from. */
static PyObject *give_machine(struct lane *lane, PyObject *data, enum kind kind)
{
    PyObject *slow = keep(lane->slow), *done = NULL, *number;
    if (!slow)
        return none();
    if (lane->waits_in == lane->turn->number && lane->turn->publish) {
        PyObject *publish = keep(lane->turn->publish);
        done = PyObject_CallNoArgs(publish);
        Py_XDECREF(publish);
        if (!done) {
            Py_XDECREF(slow);
            return NULL;
        }
        Py_XDECREF(done);
    }
    lane->open = false, lane->missing = 0;
    done = (number = PyLong_FromLong(kind)) ? PyObject_CallFunctionObjArgs(slow, data, number, NULL) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(slow);
    if (!done)
        return NULL;
    long missing = PyLong_AsLong(done);
    Py_XDECREF(done);
    if (lane->slow && !PyErr_Occurred())
        lane->open = !missing, lane->missing = missing > 0 ? missing : 0;
    return PyErr_Occurred() ? NULL : none();
}

static PyObject *give_part(struct lane *lane, const char *data, Py_ssize_t size)
{
    PyObject *part = PyBytes_FromStringAndSize(data, size), *done = part ? give_machine(lane, part, USUAL) : NULL;
    Py_XDECREF(part);
    return done;
}

/* Take a read; `whole` is the same in an object of Python. Where the read before ended amid a packet
 * the machine gets the end of that, and no more: of a client that sends without a pause every read ends so. A machine that
 * was behind is asked where it is by now, with no bytes. */
static PyObject *take_read(struct lane *lane, const char *data, Py_ssize_t size, PyObject *whole)
{
    PyObject *rest = NULL, *capsule = keep(lane->capsule); /* it may end with what the machine takes */
    Py_ssize_t pos = 0;
    bool late = size > LARGE_BYTES && lane->turn->messages >= A_TURN_MAX;
    enum kind kind = late ? LATE : size >= LONG_BYTES ? LONG : USUAL;
    PyObject *done = lane->open || lane->missing || late ? none() : give_part(lane, data, 0);
    while (done && lane->missing && lane->missing < size - pos && !late) {
        Py_ssize_t missing = lane->missing;
        Py_XDECREF(done);
        done = give_part(lane, data + pos, missing);
        pos += missing;
    }
    if (done && lane->open && !late) {
        Py_ssize_t taken = read_packets(lane, capsule, (const uint8_t *)data + pos, (size_t)(size - pos));
        pos = taken < 0 ? -1 : pos + taken;
    }
    if (pos < 0 || (done && (pos < size || kind == LONG))) {
        Py_XDECREF(done);
        done = NULL;
        if (pos >= 0)
            rest = pos ? PyBytes_FromStringAndSize(data + pos, size - pos) : keep(whole);
        if (rest)
            done = give_machine(lane, rest, kind);
    }
    Py_XDECREF(rest);
    Py_XDECREF(capsule);
    return done;
}

/* receive(bytes): of the peer. */
static PyObject *receive(PyObject *capsule, PyObject *const *arguments, Py_ssize_t count)
{
    struct lane *lane = at(capsule, LANE);
    char *data;
    Py_ssize_t size;
    if (!lane || !takes("receive", arguments, count, "b") || PyBytes_AsStringAndSize(arguments[0], &data, &size))
        return NULL;
    return take_read(lane, data, size, arguments[0]);
}

static PyMethodDef RECEIVE = FUNCTION("receive", receive);

/*
 * lane(turn, origin, device, inbound, slow, writes, version, receive maximum, length maximum, topics maximum)
 * -> (lane, receive)
 *
 * `slow` has the machine take bytes of a read of this `kind`, and says how many it then needs to end a packet, as far as it
 * knows: 0 when it is ready for another, less when lanes have to wait. `writes` is who writes its answers, a pair;
 * see `accept`.
 */
static PyObject *make_lane(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_lane", arguments, count, "OOsOOtiiii"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    struct lane *lane = turn ? PyMem_Calloc(1, sizeof *lane) : NULL;
    PyObject *capsule = lane ? PyCapsule_New(lane, LANE, free_lane) : NULL;
    if (!capsule) {
        PyMem_Free(lane);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    lane->turn = turn, lane->turn_capsule = keep(arguments[0]);
    lane->origin = keep(arguments[1]), lane->device = keep(arguments[2]), lane->inbound = keep(arguments[3]);
    lane->slow = keep(arguments[4]), lane->writes = keep(arguments[5]);
    lane->version = (uint8_t)PyLong_AsLong(arguments[6]);
    lane->receive_maximum = PyLong_AsLong(arguments[7]), lane->length_max = PyLong_AsLong(arguments[8]);
    lane->topics_max = (uint32_t)PyLong_AsLong(arguments[9]), lane->capsule = capsule;
    if (PyErr_Occurred()) {
        Py_XDECREF(capsule);
        return NULL;
    }
    return Py_BuildValue("NN", capsule, PyCFunction_NewEx(&RECEIVE, capsule, NULL));
}

/* close_lane(lane): nothing more is taken or answered. */
static PyObject *close_lane(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_close_lane", arguments, count, "O"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane)
        return NULL;
    drop_calls(lane);
    return none();
}

/* unlearn(lane): what it was taught counts no more. */
static PyObject *unlearn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_unlearn", arguments, count, "O"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane)
        return NULL;
    forget_topics(lane);
    forget_prefixes(lane);
    return none();
}

/* heard(lane) -> when it last took something */
static PyObject *heard(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_heard", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyFloat_FromDouble(lane->heard_s) : NULL;
}

/* held(lane) -> bytes of the topics it was taught */
static PyObject *held(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_held", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyLong_FromLong((long)lane->topic_bytes) : NULL;
}

/* waits(lane): what it took was not published yet */
static PyObject *waits(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_waits", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyBool_FromLong(lane->waits_in == lane->turn->number) : NULL;
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

/* rows(stretch) -> [(sink, runs, bytes, messages)], a log each */
static PyObject *rows(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_rows", arguments, count, "O"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    return stretch ? keep(stretch->logs) : NULL;
}

/* members(stretch) -> [(origin, run, packet identifiers)] in the order they came */
static PyObject *members(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_members", arguments, count, "O"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    PyObject *found = stretch ? PyList_New(0) : NULL;
    const uint16_t *ids = stretch ? stretch->ids : NULL;
    for (size_t i = 0; found && i < stretch->entries_used; i++) {
        const struct lane *lane = at(stretch->entries[i].lane, LANE);
        PyObject *tokens = list_ids(ids, stretch->entries[i].ids);
        append_or_drop(&found, tokens ? Py_BuildValue("OOO", lane->origin, stretch->entries[i].run, tokens) : NULL);
        ids += stretch->entries[i].ids;
        Py_XDECREF(tokens);
    }
    return found;
}

/* offers(stretch) -> [(who gets them, runs, origins, messages of QoS 1)] in the order they came */
static PyObject *list_offers(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_offers", arguments, count, "O"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    PyObject *found = stretch ? PyList_New(0) : NULL;
    for (size_t i = 0; found && i < stretch->offers_used; i++) {
        const struct offer *offer = &stretch->offers[i];
        Py_ssize_t messages = (Py_ssize_t)offer->qos1_messages;
        append_or_drop(&found, Py_BuildValue("OOOn", offer->live, offer->runs, offer->origins, messages));
    }
    return found;
}

/* count(stretch) -> messages */
static PyObject *count_messages(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_count", arguments, count, "O"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    return stretch ? PyLong_FromLong((long)stretch->messages) : NULL;
}

/* part(stretch, awaiting) -> (answers to be given now, answers that wait). What is not kept is answered behind what its
 * origin sent before: in this stretch, or where it is in `awaiting`. */
static PyObject *part_answers(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_part", arguments, count, "Od"))
        return NULL;
    struct stretch *stretch = at(arguments[0], STRETCH);
    Py_ssize_t now = 0, later = 0;
    for (size_t i = 0; stretch && i < stretch->entries_used; i++) {
        struct entry *entry = &stretch->entries[i];
        struct lane *lane = at(entry->lane, LANE);
        if (!entry->ids)
            continue;
        if (entry->answer == NOW && (lane->behind || PyDict_GetItemWithError(arguments[1], lane->origin)))
            entry->answer = BEHIND;
        lane->behind = entry->answer != NOW;
        *(lane->behind ? &later : &now) += entry->ids;
    }
    for (size_t i = 0; stretch && i < stretch->entries_used; i++)
        ((struct lane *)at(stretch->entries[i].lane, LANE))->behind = false;
    return stretch && !PyErr_Occurred() ? Py_BuildValue("nn", now, later) : NULL;
}

/* waiting(stretch) -> [(origin, packet identifiers, whether its messages are kept)] whose answers wait */
static PyObject *list_waiting(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_waiting", arguments, count, "O"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    PyObject *found = stretch ? PyList_New(0) : NULL;
    const uint16_t *ids = stretch ? stretch->ids : NULL;
    for (size_t i = 0; found && i < stretch->entries_used; i++) {
        const struct entry *entry = &stretch->entries[i];
        const struct lane *lane = at(entry->lane, LANE);
        if (entry->ids && entry->answer != NOW) {
            PyObject *tokens = list_ids(ids, entry->ids);
            append_or_drop(&found, tokens ? Py_BuildValue("OOi", lane->origin, tokens, entry->answer == KEPT) : NULL);
            Py_XDECREF(tokens);
        }
        ids += entry->ids;
    }
    return found;
}

/* For the origin of each run with answers that wait, `by` answers more are to come; who waits for none is not in `awaiting`. */
static PyObject *change_awaiting(PyObject *capsule, PyObject *awaiting, long by)
{
    const struct stretch *stretch = at(capsule, STRETCH);
    for (size_t i = 0; stretch && i < stretch->entries_used; i++) {
        if (!stretch->entries[i].ids || stretch->entries[i].answer == NOW)
            continue;
        PyObject *origin = ((struct lane *)at(stretch->entries[i].lane, LANE))->origin;
        PyObject *before = PyDict_GetItemWithError(awaiting, origin);
        long left = (before ? PyLong_AsLong(before) : 0) + by;
        PyObject *after = left > 0 ? PyLong_FromLong(left) : NULL;
        bool failed = PyErr_Occurred() != NULL;
        if (!failed)
            failed = after ? PyDict_SetItem(awaiting, origin, after) : before && PyDict_DelItem(awaiting, origin);
        Py_XDECREF(after);
        if (failed)
            return NULL;
    }
    return stretch ? none() : NULL;
}

/* await(stretch, awaiting): each origin has as many answers to come more as it has runs with answers that wait */
static PyObject *await_answers(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_await", arguments, count, "Od"))
        return NULL;
    return change_awaiting(arguments[0], arguments[1], 1);
}

/* awaited(stretch, awaiting): the opposite */
static PyObject *awaited(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_awaited", arguments, count, "Od"))
        return NULL;
    return change_awaiting(arguments[0], arguments[1], -1);
}

static bool add_answers(struct lane *lane, const uint16_t *ids, uint32_t count)
{
    while (lane->answer_room < lane->answer_bytes + PUBACK_BYTES * (size_t)count)
        if (!room((void **)&lane->answers, lane->answer_room, &lane->answer_room, 1))
            return false;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *packet = lane->answers + lane->answer_bytes;
        packet[0] = 0x40, packet[1] = 2, packet[2] = (uint8_t)(ids[i] >> 8), packet[3] = (uint8_t)ids[i];
        lane->answer_bytes += PUBACK_BYTES;
    }
    return true;
}

/* The client may send as many messages more. */
static bool answered(const struct lane *lane)
{
    PyObject *inbound = keep(lane->inbound), *number = field(inbound, OUTSTANDING);
    long left = number ? PyLong_AsLong(number) - (long)(lane->answer_bytes / PUBACK_BYTES) : 0;
    Py_XDECREF(number);
    number = PyErr_Occurred() ? NULL : PyLong_FromLong(left > 0 ? left : 0);
    bool set = number && !PyObject_SetAttr(inbound, OUTSTANDING, number);
    Py_XDECREF(number);
    Py_XDECREF(inbound);
    return set;
}

/* Add a lane's answers to those that are to be written; false with an error. */
static bool list_answers(const struct lane *lane, PyObject *answers)
{
    if (!lane->slow)
        return true; /* it was closed meanwhile */
    PyObject *writes = keep(lane->writes), *row = NULL;
    bool counted = answered(lane);
    if (counted && !lane->slow) { /* by what was asked */
        Py_XDECREF(writes);
        return true;
    }
    if (counted)
        row = Py_BuildValue("OOy#", PyTuple_GetItem(writes, 0), PyTuple_GetItem(writes, 1), (const char *)lane->answers,
                            (Py_ssize_t)lane->answer_bytes);
    bool added = append(answers, row);
    Py_XDECREF(writes);
    return added;
}

/* accept(stretch, whether those that wait, or those that do not) -> ([(the pair that writes a lane's answers, and its PUBACKs
 * of all messages)], origins of which an answer could not be given) */
static PyObject *accept_all(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_accept", arguments, count, "OO"))
        return NULL;
    const struct stretch *stretch = at(arguments[0], STRETCH);
    PyObject *answers = stretch ? PyList_New(0) : NULL, *failed = answers ? PyList_New(0) : NULL;
    if (!failed) {
        Py_XDECREF(answers);
        return NULL;
    }
    struct lane *first = NULL, **last = &first;
    const uint16_t *ids = stretch->ids;
    bool waiting = arguments[1] != Py_False;
    for (size_t i = 0; i < stretch->entries_used; i++) {
        struct lane *lane = at(stretch->entries[i].lane, LANE);
        uint32_t its_ids = stretch->entries[i].ids;
        if ((stretch->entries[i].answer != NOW) != waiting) {
            ids += its_ids;
            continue;
        }
        if (its_ids && !lane->answered) {
            lane->answered = true, lane->next_answered = NULL;
            *last = lane, last = &lane->next_answered;
        }
        if (its_ids && !add_answers(lane, ids, its_ids)) {
            PyErr_Clear();
            PyList_Append(failed, lane->origin);
        }
        ids += its_ids;
    }
    for (struct lane *lane = first; lane; lane = lane->next_answered) {
        bool listed = list_answers(lane, answers);
        PyErr_Clear(); /* what it says may quote a message */
        if (!listed && PyList_Append(failed, lane->origin))
            PyErr_Clear();
        lane->answered = false, lane->answer_bytes = 0;
        if (lane->answer_room > ANSWERS_KEPT_MAX) {
            PyMem_Free(lane->answers);
            lane->answers = NULL, lane->answer_room = 0;
        }
    }
    return Py_BuildValue("NN", answers, failed);
}

static PyMethodDef functions[] = {
    FUNCTION("mqtt_turn", make_turn),
    FUNCTION("mqtt_close_turn", close_turn),
    FUNCTION("mqtt_stamp", stamp),
    FUNCTION("mqtt_forget_routes", forget_routes),
    FUNCTION("mqtt_take", take),
    FUNCTION("mqtt_log", make_log),
    FUNCTION("mqtt_column", make_column),
    FUNCTION("mqtt_direct", direct),
    FUNCTION("mqtt_prefix", make_prefix),
    FUNCTION("mqtt_direct_all", direct_all),
    FUNCTION("mqtt_lane", make_lane),
    FUNCTION("mqtt_learn", learn),
    FUNCTION("mqtt_permit", permit),
    FUNCTION("mqtt_unlearn", unlearn),
    FUNCTION("mqtt_close_lane", close_lane),
    FUNCTION("mqtt_heard", heard),
    FUNCTION("mqtt_held", held),
    FUNCTION("mqtt_waits", waits),
    FUNCTION("mqtt_rows", rows),
    FUNCTION("mqtt_offers", list_offers),
    FUNCTION("mqtt_members", members),
    FUNCTION("mqtt_count", count_messages),
    FUNCTION("mqtt_part", part_answers),
    FUNCTION("mqtt_waiting", list_waiting),
    FUNCTION("mqtt_await", await_answers),
    FUNCTION("mqtt_awaited", awaited),
    FUNCTION("mqtt_accept", accept_all),
    {NULL, NULL, 0, NULL},
};

int add_arrivals(PyObject *module)
{
    if (!(OUTSTANDING = PyUnicode_InternFromString("outstanding")))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
