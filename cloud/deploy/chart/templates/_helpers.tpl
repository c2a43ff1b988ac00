{{- define "waypost-hub.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "waypost-hub.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "waypost-hub.common" . }}
{{- end -}}

{{- define "waypost-hub.common" -}}
app.kubernetes.io/name: waypost-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "waypost-hub.selector" -}}
{{ include "waypost-hub.common" . }}
app.kubernetes.io/component: hub
{{- end -}}

{{- define "waypost-hub.authoritySelector" -}}
{{ include "waypost-hub.common" . }}
app.kubernetes.io/component: authority
{{- end -}}

{{- define "waypost-hub.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "waypost-hub.analyticsImage" -}}
{{ .Values.analytics.image.repository }}:{{ .Values.analytics.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "waypost-hub.database" -}}
{{ include "waypost-hub.name" . }}-registry
{{- end -}}

{{- define "waypost-hub.registryUrl" -}}
{{- if .Values.registry.url -}}
{{- .Values.registry.url -}}
{{- else if .Values.cloudNativePg.enabled -}}
postgresql://waypost@{{ include "waypost-hub.database" . }}-rw/waypost
{{- else -}}
{{- fail "registry.url is missing: replicas share a registry in PostgreSQL (or set cloudNativePg.enabled)" -}}
{{- end -}}
{{- end -}}

{{/* Secret with the password of the registry; empty if it needs none. */}}
{{- define "waypost-hub.registrySecret" -}}
{{- if .Values.registry.existingSecret -}}
{{- .Values.registry.existingSecret -}}
{{- else if and .Values.cloudNativePg.enabled (not .Values.registry.url) -}}
{{ include "waypost-hub.database" . }}-app
{{- end -}}
{{- end -}}

{{/* Environment of a process that opens the lake. */}}
{{- define "waypost-hub.lakeEnvironment" -}}
- {name: AWS_REGION, value: {{ .Values.lake.region | quote }}}
{{- with .Values.lake.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.lake.existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end }}
{{- end -}}

{{/* Environment of a process that opens the registry. */}}
{{- define "waypost-hub.registryEnvironment" -}}
{{- with include "waypost-hub.registrySecret" . -}}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.registry.passwordKey }}}}
{{- end -}}
{{- end -}}

{{/* Environment of a process that opens lake and registry. */}}
{{- define "waypost-hub.environment" -}}
{{ include "waypost-hub.lakeEnvironment" . }}
{{- with include "waypost-hub.registryEnvironment" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* User at Kafka; empty if it needs none. */}}
{{- define "waypost-hub.kafkaUser" -}}
{{- if .Values.kafka.user -}}
{{- .Values.kafka.user -}}
{{- else if .Values.kafka.strimzi.enabled -}}
{{ include "waypost-hub.name" . }}
{{- end -}}
{{- end -}}

{{/* Secret with the password of that user. Strimzi names it as the user. */}}
{{- define "waypost-hub.kafkaSecret" -}}
{{- if .Values.kafka.existingSecret -}}
{{- .Values.kafka.existingSecret -}}
{{- else if .Values.kafka.strimzi.enabled -}}
{{ include "waypost-hub.kafkaUser" . }}
{{- else -}}
{{- fail "kafka.existingSecret is missing: kafka.user has a password" -}}
{{- end -}}
{{- end -}}

{{/* Field `kafka` of the resource `Hub`. */}}
{{- define "waypost-hub.kafka" -}}
{{- $kafka := dict "brokers" .Values.kafka.brokers "topic" .Values.kafka.topic -}}
{{- if .Values.kafka.caSecret -}}
{{- $_ := set $kafka "tls" (dict "caCert" "/etc/waypost/kafka/ca.crt") -}}
{{- end -}}
{{- with include "waypost-hub.kafkaUser" . -}}
{{- if not $.Values.kafka.caSecret -}}
{{- fail "kafka.caSecret is missing: hubs send no password without TLS" -}}
{{- end -}}
{{- $_ := set $kafka "user" . -}}
{{- $_ := set $kafka "passwordFile" "/etc/waypost/kafka/password" -}}
{{- $_ := set $kafka "mechanism" $.Values.kafka.mechanism -}}
{{- end -}}
{{- toYaml $kafka -}}
{{- end -}}

{{- define "waypost-hub.rabbitmq" -}}
{{ include "waypost-hub.name" . }}-messages
{{- end -}}

{{/* URL of the message broker; empty if there is none. */}}
{{- define "waypost-hub.messagingUrl" -}}
{{- if .Values.messaging.url -}}
{{- .Values.messaging.url -}}
{{- else if .Values.messaging.rabbitmq.enabled -}}
amqps://{{ include "waypost-hub.rabbitmq" . }}.{{ .Release.Namespace }}.svc:5671
{{- end -}}
{{- end -}}

{{/* User at the message broker; empty if it needs none. */}}
{{- define "waypost-hub.messagingUser" -}}
{{- if .Values.messaging.user -}}
{{- .Values.messaging.user -}}
{{- else if .Values.messaging.rabbitmq.enabled -}}
waypost
{{- end -}}
{{- end -}}

{{/* Field `messaging` of the resource `Hub`. */}}
{{- define "waypost-hub.messaging" -}}
{{- $broker := deepCopy .Values.messaging.addresses -}}
{{- if .Values.messaging.rabbitmq.enabled -}}
{{- if .Values.messaging.url -}}
{{- fail "messaging.url and messaging.rabbitmq.enabled: hubs use one broker; leave one of them out" -}}
{{- end -}}
{{- range list "commands" "outcomes" "replies" -}}
{{- if hasKey $broker . -}}
{{- fail (printf "messaging.addresses.%s: with messaging.rabbitmq.enabled the chart names the queues; leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $broker "commands" "/queues/waypost.{tenant}.commands" -}}
{{- $_ := set $broker "outcomes" "/queues/waypost.{tenant}.outcomes" -}}
{{- $_ := set $broker "replies" "/queues/waypost.{tenant}.replies." -}}
{{- end -}}
{{- $_ := set $broker "url" (include "waypost-hub.messagingUrl" .) -}}
{{- with .Values.messaging.failover -}}
{{- $_ := set $broker "failover" . -}}
{{- end -}}
{{- if .Values.messaging.caSecret -}}
{{- $_ := set $broker "tls" (dict "caCert" "/etc/waypost/messaging/ca.crt") -}}
{{- end -}}
{{- with include "waypost-hub.messagingUser" . -}}
{{- if not $.Values.messaging.existingSecret -}}
{{- fail "messaging.existingSecret is missing: messaging.user has a password" -}}
{{- end -}}
{{- $_ := set $broker "user" . -}}
{{- $_ := set $broker "passwordFile" "/etc/waypost/messaging/password" -}}
{{- end -}}
{{- toYaml $broker -}}
{{- end -}}

{{/* True if the broker needs files. */}}
{{- define "waypost-hub.messagingFiles" -}}
{{- if and (include "waypost-hub.messagingUrl" .) (or .Values.messaging.caSecret (include "waypost-hub.messagingUser" .)) -}}true{{- end -}}
{{- end -}}

{{/* Port of a URL, or the default of its scheme. */}}
{{- define "waypost-hub.port" -}}
{{- $defaults := dict "postgresql" 5432 "https" 443 "http" 80 "amqps" 5671 "amqp" 5672 -}}
{{- $found := regexFind ":[0-9]+$" (regexFind "^[^:]+://[^/?#]*" .) | trimPrefix ":" -}}
{{- $found | default (get $defaults (regexFind "^[^:]+" .)) -}}
{{- end -}}

{{/* Ports that hubs reach, by the values, as JSON. */}}
{{- define "waypost-hub.reachedPorts" -}}
{{- $ports := list 5432 6432 443 9000 -}}
{{- range .Values.networkPolicy.receiverPorts -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- range .Values.kafka.brokers -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- $issuer := dig "oidc" "issuer" "" .Values.hub -}}
{{- $urls := list (include "waypost-hub.registryUrl" .) .Values.lake.endpoint $issuer .Values.prove.pushgateway -}}
{{- range concat $urls (list (include "waypost-hub.messagingUrl" .)) .Values.messaging.failover | compact -}}
{{- $ports = append $ports (include "waypost-hub.port" . | int) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/*
Number of hubs. Empty if the autoscaler alone sets it, so that neither an update nor a rollback changes it. When the
autoscaler is turned on later, the number in the cluster is rendered from then on: Helm would take out the number that it
has set before, and Kubernetes would end all hubs but one. The annotation remembers that.
*/}}
{{- define "waypost-hub.replicas" -}}
{{- if not .Values.autoscaling.enabled -}}
{{ .Values.replicas }}
{{- else -}}
{{- $name := include "waypost-hub.name" . -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace $name -}}
{{- $autoscaler := lookup "autoscaling/v2" "HorizontalPodAutoscaler" .Release.Namespace $name -}}
{{- if and $live (or (not $autoscaler) (dig "metadata" "annotations" "waypost/replicas" "" $live)) -}}
{{ $live.spec.replicas }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "waypost-hub.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "waypost-hub.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Resource `Hub`: fields of `hub`, and those that the chart sets. */}}
{{- define "waypost-hub.configuration" -}}
{{- $spec := deepCopy .Values.hub -}}
{{- $_ := set $spec "names" .Values.names -}}
{{- $_ := set $spec "lake" .Values.lake.place -}}
{{- $_ := set $spec "registry" (include "waypost-hub.registryUrl" .) -}}
{{- $_ := set $spec "authority" (dict "certificate" "/etc/waypost/authority/ca.crt") -}}
{{- $_ := set $spec "applications" false -}}
{{- $_ := set $spec "drainSeconds" .Values.drain.seconds -}}
{{- if .Values.kafka.brokers -}}
{{- $_ := set $spec "kafka" (include "waypost-hub.kafka" . | fromYaml) -}}
{{- end -}}
{{- if include "waypost-hub.messagingUrl" . -}}
{{- $_ := set $spec "messaging" (include "waypost-hub.messaging" . | fromYaml) -}}
{{- end -}}
{{- toYaml (dict "apiVersion" "waypost/v1" "kind" "Hub" "spec" $spec) -}}
{{- end -}}

{{/* Resource `Hub` of the process with the authority's key. */}}
{{- define "waypost-hub.authorityConfiguration" -}}
{{- $spec := pick .Values.hub "certificateDays" "ocspUrl" -}}
{{- $_ := set $spec "names" .Values.names -}}
{{- $_ := set $spec "registry" (include "waypost-hub.registryUrl" .) -}}
{{- $_ := set $spec "authority" (dict "certificate" "/etc/waypost/authority/tls.crt" "key" "/etc/waypost/authority/tls.key") -}}
{{- toYaml (dict "apiVersion" "waypost/v1" "kind" "Hub" "spec" $spec) -}}
{{- end -}}

{{/* Ports of the hub's containers. */}}
{{- define "waypost-hub.ports" -}}
- {name: amqps, containerPort: 5671}
- {name: https, containerPort: 8443}
{{- end -}}

{{/* Names under which browsers reach the console, as JSON. */}}
{{- define "waypost-hub.consoleHosts" -}}
{{- $hosts := .Values.names -}}
{{- range list .Values.console.ingress .Values.console.httpRoute -}}
{{- if and .enabled .host -}}
{{- $hosts = append $hosts .host -}}
{{- end -}}
{{- end -}}
{{- $hosts | uniq | toJson -}}
{{- end -}}

{{/* Pages to which Keycloak may go after a sign-out, as it separates them. */}}
{{- define "waypost-hub.signOutPages" -}}
{{- $pages := list -}}
{{- range . -}}
{{- $pages = append $pages (printf "https://%s/" .) -}}
{{- end -}}
{{- join "##" $pages -}}
{{- end -}}
