"""Device API over one MQTT connection, as an interceptor of its session.

No state outlives the connection: as in Hono a device subscribes again after each connect. The session publishes the
messages of a device to another address, so that acknowledgements keep their order.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.message import AMQP, RETAIN, Run
from edge.broker.hono import messages
from edge.broker.hono.errors import DeviceError, bad_request, refusal_error
from edge.broker.hono.limits import (
    COMMAND_SUBSCRIPTIONS_MAX,
    PLAN_PROPERTIES_BYTES_MAX,
    PLANS_CACHED_MAX,
)
from edge.broker.hono.mqtt_commands import CommandSubscriber
from edge.broker.hono.service import DeviceService
from edge.broker.hono.tenant import DevicePrincipal
from edge.broker.hono.topics import (
    ANY_DEVICE,
    DeviceEndpoint,
    DeviceFilter,
    OnError,
    PropertyBag,
    Upload,
    read_bag,
    read_filter,
    read_upload,
    split_bag,
)
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import AddressError, Refusal
from edge.broker.mqtt.events import MqttDelivery, PublishEvent, SubscriptionRequest, Will
from edge.broker.mqtt.interception import (
    UNCHANGED,
    ClientAdmission,
    InterceptedPublisher,
    Interception,
    Interceptor,
    NotAdmitted,
)
from edge.broker.mqtt.session import MqttSession

log = logging.getLogger(__name__)

_NS_IN_S: Final = 1_000_000_000
_NO_CORRELATION: Final = "-1"
_CODES: Final = {
    400: ReasonCode.TOPIC_NAME_INVALID,
    401: ReasonCode.NOT_AUTHORIZED,
    403: ReasonCode.NOT_AUTHORIZED,
    404: ReasonCode.NOT_AUTHORIZED,
    413: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    503: ReasonCode.QUOTA_EXCEEDED,
}
"""MQTT 5 reason code by status."""
_DISABLED: Final = 404
_CHECKED: Final = (None, "", messages.EMPTY_NOTIFICATION)
"""Content types with a rule for the payload."""


@hides("properties")
class UploadPlan(msgspec.Struct, frozen=True):
    """Translation of the messages of one topic."""

    upload: Upload
    bag: PropertyBag = PropertyBag()
    device: str = ""
    properties: bytes = b""
    """Properties of the run to publish."""
    content_type: str | None = messages.OPAQUE
    """Content type for `messages.check_payload`, or None."""
    error: DeviceError | None = None
    """Error if the messages are refused."""


class DeviceConnection(Interceptor):
    """Interceptor of one connection: of an authenticated device or gateway, or (without a principal) of any client."""

    answers_at_once = True

    def __init__(
        self,
        service: DeviceService,
        publisher: InterceptedPublisher,
        session: MqttSession,
        principal: DevicePrincipal | None,
    ) -> None:
        self._service = service
        self._publisher = publisher
        self._session = session
        self._principal = principal
        self._plans: dict[tuple[str, bytes, int], UploadPlan | None] = {}
        self._unanswered: dict[int, UploadPlan] = {}
        """Published and unanswered messages by packet identifier."""
        self._commands: dict[str, CommandSubscriber] = {}
        self._errors: dict[str, DeviceFilter] = {}

    @property
    def own(self) -> str:
        """The connected device; empty without authentication."""
        return self._principal.device if self._principal is not None else ""

    # --- publishing ---------------------------------------------------------------------------------------------

    def published(self, event: PublishEvent) -> bool:
        """Publish messages to a topic of the device API. Return False for other topics."""
        run = event.run
        plan = self._plan_of(run)
        if plan is None:
            return False
        error = plan.error
        if error is None:
            try:
                for body in run.bodies if plan.content_type in _CHECKED else ():
                    messages.check_payload(plan.content_type, body)
                self._publish(plan, event)
            except DeviceError as failed:
                error = failed
        if error is not None:
            self._service.router.figures.refused += max(1, len(event.packet_ids))
            self._fail(plan, event.packet_ids, run.qos, error)
        return True

    def will(self, will: Will | None, grant: Grant | None) -> Will | None:
        """Return the will to publish: to the address of the device API, unchanged if allowed, or None.

        Hono ignores all wills, so a device must not be refused because of one.
        """
        if will is None:
            return None
        run = will.run
        plan = self._plan_of(run)
        if plan is not None and plan.error is None and plan.upload.endpoint is not DeviceEndpoint.RESPONSE:
            address = self._service.address(plan.upload.endpoint)
            return Will(Run(address, plan.device, run.flags & ~RETAIN, plan.properties, run.bodies), will.delay_s)
        if plan is None and (grant is None or grant.may_send(run.address)):
            return will
        log.warning("%s: its will for %s is ignored", self._publisher.name, run.address[:100])
        return None

    def accepted(self, packet_ids: Sequence[int]) -> None:
        unanswered = self._unanswered
        if unanswered:
            for packet_id in packet_ids:
                unanswered.pop(packet_id, None)

    def refused(self, packet_ids: Sequence[int], qos: int, why: Refusal) -> bool:
        """Answer messages that the router refused. Return False for other topics."""
        first = self._unanswered.get(packet_ids[0])
        if first is None:
            return False
        for packet_id in packet_ids:
            plan = self._unanswered.pop(packet_id, first)
            self._fail(plan, [packet_id], qos, refusal_error(why))
        return True

    def _plan_of(self, run: Run) -> UploadPlan | None:
        key = (run.address, run.properties, run.flags)
        plans = self._plans
        if key in plans:
            return plans[key]
        plan = self._plan(run)
        if len(run.properties) <= PLAN_PROPERTIES_BYTES_MAX:
            if len(plans) >= PLANS_CACHED_MAX:
                plans.clear()
            plans[key] = plan
        return plan

    def _plan(self, run: Run) -> UploadPlan | None:
        name, text = split_bag(run.address)
        try:
            upload = read_upload(name)
        except DeviceError as error:
            # without authentication it may be an ordinary topic
            return None if self._principal is None else UploadPlan(_unreadable(name), error=error)
        if upload is None or (self._principal is None and upload.tenant not in ("", self._service.tenant.name)):
            return None
        bag = PropertyBag()
        try:
            bag = read_bag(text)
            device = self._service.tenant.device(self._principal, upload.tenant, upload.device)
            return self._checked(run, UploadPlan(upload, bag, device))
        except (DeviceError, MqttError) as error:
            found = error if isinstance(error, DeviceError) else bad_request(str(error))
            return UploadPlan(upload, bag, error=found)

    def _checked(self, run: Run, plan: UploadPlan) -> UploadPlan:
        """Complete the plan with all that is independent of the payload. Raises DeviceError or MqttError."""
        upload, bag = plan.upload, plan.bag
        if upload.endpoint is DeviceEndpoint.EVENT and not run.qos:
            raise bad_request("events must be published with QoS 1")
        own = messages.content_type_in(run.properties)
        if upload.endpoint is DeviceEndpoint.RESPONSE:
            self._service.requests.read(plan.device, upload.request)
            return msgspec.structs.replace(plan, properties=run.properties)
        source = messages.MessageSource(plan.device, messages.MQTT_ADAPTER, run.address)
        ttl_s = bag.ttl_s if upload.endpoint is DeviceEndpoint.EVENT else None
        properties = messages.mqtt_properties(run.properties, source, bag.content_type, ttl_s)
        return msgspec.structs.replace(plan, properties=properties, content_type=bag.content_type or own)

    def _publish(self, plan: UploadPlan, event: PublishEvent) -> None:
        run = event.run
        if event.packet_ids:
            self._unanswered.update(dict.fromkeys(event.packet_ids, plan))
        if plan.upload.endpoint is DeviceEndpoint.RESPONSE:
            self._publish_responses(plan, event)
            return
        address = self._service.address(plan.upload.endpoint)
        if run.flags & RETAIN:
            found = self._annotated(address, plan, run)
        else:
            found = Run(address, plan.device, run.flags, plan.properties, run.bodies)
        self._publisher.publish(found, event.packet_ids)

    def _publish_responses(self, plan: UploadPlan, event: PublishEvent) -> None:
        run, upload = event.run, plan.upload
        content_type = plan.bag.content_type or messages.content_type_in(run.properties)
        for i, body in enumerate(run.bodies):
            found = self._service.response(
                plan.device, upload.request, status=upload.status, content_type=content_type, body=body, qos=run.qos
            )
            self._publisher.publish(found, event.packet_ids[i : i + 1])

    def _annotated(self, address: str, plan: UploadPlan, run: Run) -> Run:
        """Convert retained messages: they are not retained, but applications get an annotation."""
        properties = messages.decode_properties(plan.properties)
        source = messages.MessageSource(plan.device, messages.MQTT_ADAPTER, run.address)
        now_ns = self._service.router.now_ns()
        bodies = [
            messages.encode_bare_message(
                to=address,
                body=body,
                now_ns=now_ns,
                application=messages.upload_properties(source),
                content_type=properties.content_type,
                retain=True,
            )
            for body in run.bodies
        ]
        header = messages.header(durable=run.qos > 0, ttl_s=properties.message_expiry_interval_s)
        return Run(address, plan.device, (run.flags & ~RETAIN) | AMQP, header, bodies)

    # --- errors -------------------------------------------------------------------------------------------------

    def _fail(self, plan: UploadPlan, packet_ids: Sequence[int], qos: int, error: DeviceError) -> None:
        """Report an error, and answer according to ``on-error`` of the topic and the error subscriptions."""
        wanted = self._error_filter(plan)
        log.info("%s: %s refused: %d %s", self._publisher.name, plan.upload.endpoint.value, error.status, error)
        if wanted is not None:
            for packet_id in packet_ids or (None,):
                self._report(wanted, plan, packet_id, error)
        action = plan.bag.on_error
        if action is OnError.DEFAULT:
            action = OnError.DISCONNECT if wanted is None else OnError.IGNORE
        reason = _CODES.get(error.status, ReasonCode.UNSPECIFIED_ERROR)
        if action is OnError.IGNORE and qos:
            self._publisher.acknowledge(packet_ids, qos, reason)
        elif qos == 2:
            self._publisher.forget(packet_ids)
        if action is OnError.DISCONNECT or error.status == _DISABLED:
            self._publisher.connection.disconnect(reason)
        self._publisher.flush_soon()

    def _error_filter(self, plan: UploadPlan) -> DeviceFilter | None:
        """Return the error subscription for the device of a plan, or None."""
        device = plan.device or plan.upload.device or self.own
        for wanted in self._errors.values():
            if wanted.device in (ANY_DEVICE, device) or (not wanted.device and device == self.own):
                return wanted
        return None

    def _report(self, wanted: DeviceFilter, plan: UploadPlan, packet_id: int | None, error: DeviceError) -> None:
        correlation = plan.bag.correlation or (_NO_CORRELATION if packet_id is None else str(packet_id))
        device = plan.device or plan.upload.device or self.own
        topic = wanted.topic(device, self.own, f"{plan.upload.word}/{correlation}/{error.status}")
        at = datetime.datetime.fromtimestamp(self._service.router.now_ns() / _NS_IN_S, datetime.UTC)
        document = {
            "code": error.status,
            "message": str(error),
            "timestamp": at.isoformat(timespec="milliseconds"),
            "correlation-id": correlation,
        }
        properties = messages.plain_properties("application/json", None)
        run = Run(topic, "", 0, properties, [json.dumps(document).encode()])
        self._publisher.connection.deliver(MqttDelivery(run, 0, False, None))

    # --- subscribing --------------------------------------------------------------------------------------------

    def subscribe(self, request: SubscriptionRequest) -> ReasonCode | None:
        """Answer a subscription to commands or errors; None leaves it to the session."""
        wanted = read_filter(request.filter)
        if wanted is None or (self._principal is None and wanted.tenant != self._service.tenant.name):
            return None
        if len(self._commands) + len(self._errors) >= COMMAND_SUBSCRIPTIONS_MAX:
            return ReasonCode.QUOTA_EXCEEDED
        try:
            device = self._device_of(wanted)
            if wanted.errors:
                self._errors[request.filter] = wanted
                return ReasonCode.GRANTED_QOS_0
            self._subscribe_commands(request, wanted, device)
        except DeviceError as error:
            log.warning("%s: subscription to %s refused: %s", self._publisher.name, request.filter[:100], error)
            return ReasonCode.NOT_AUTHORIZED if error.status in (401, 403) else ReasonCode.UNSPECIFIED_ERROR
        except AddressError as error:
            log.warning("%s: subscription to %s refused: %s", self._publisher.name, request.filter[:100], error)
            return ReasonCode.QUOTA_EXCEEDED
        return ReasonCode(min(request.qos, 1))

    def _device_of(self, wanted: DeviceFilter) -> str | None:
        """Return the device of a filter, None for all devices of the gateway. Raises DeviceError."""
        tenant, principal = self._service.tenant, self._principal
        if wanted.device != ANY_DEVICE:
            return tenant.device(principal, wanted.tenant, wanted.device)
        if principal is None:
            raise DeviceError(401, "only an authenticated gateway can subscribe for other devices")
        tenant.device(principal, wanted.tenant, "")
        return None

    def _subscribe_commands(self, request: SubscriptionRequest, wanted: DeviceFilter, device: str | None) -> None:
        """Subscribe to commands of a device, or (None) of all devices of the gateway. Raises AddressError."""
        self._unsubscribe_commands(request.filter)
        request = msgspec.structs.replace(request, qos=min(request.qos, 1))
        gateway = self._principal if device is None else None
        self._commands[request.filter] = CommandSubscriber(
            self._session,
            request,
            self._service,
            wanted,
            own=self.own,
            device=device or self.own,
            gateway=gateway,
        )

    def unsubscribe(self, pattern: str) -> bool:
        """Remove a subscription to commands or errors. Return False without one."""
        if self._errors.pop(pattern, None) is not None:
            return True
        return self._unsubscribe_commands(pattern)

    def _unsubscribe_commands(self, pattern: str) -> bool:
        found = self._commands.pop(pattern, None)
        if found is None:
            return False
        found.end()
        return True

    def pump(self) -> None:
        """Deliver waiting commands."""
        for subscriber in list(self._commands.values()):
            subscriber.pump()

    def leave(self) -> None:
        """End all subscriptions with the connection."""
        for pattern in list(self._commands):
            self._unsubscribe_commands(pattern)


def _unreadable(name: str) -> Upload:
    """Return the readable part of a malformed topic, for the report."""
    first = name.split("/", 1)[0]
    endpoints = {"t": DeviceEndpoint.TELEMETRY, "e": DeviceEndpoint.EVENT, "c": DeviceEndpoint.RESPONSE}
    return Upload(endpoints.get(first[:1], DeviceEndpoint.TELEMETRY), len(first) == 1)


class DeviceAdmission(ClientAdmission):
    """Admission of a device, or (without a principal) of any client."""

    def __init__(self, service: DeviceService, principal: DevicePrincipal | None) -> None:
        self._service = service
        self._principal = principal

    @property
    def keeps_session(self) -> bool:
        """False for devices: as in Hono they subscribe after each connect."""
        return self._principal is None

    @property
    def takes_will(self) -> bool:
        return self._principal is not None

    def interceptor(self, publisher: InterceptedPublisher, session: MqttSession) -> DeviceConnection:
        return DeviceConnection(self._service, publisher, session, self._principal)


class DeviceInterception(Interception):
    """Device API over MQTT."""

    def __init__(self, service: DeviceService) -> None:
        self._service = service

    def admit(self, user: str | None, *, authenticated: bool) -> ClientAdmission:
        try:
            principal = self._service.tenant.principal(user)
        except DeviceError as error:
            raise NotAdmitted(str(error)) from None
        if principal is None and authenticated:
            return UNCHANGED  # an application
        return DeviceAdmission(self._service, principal)
