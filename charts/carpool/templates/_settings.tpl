{{/* Settings that mode policy knows: what becomes a flag of the sidecar, in the injector's order, each with what its value
     may be. Values that the injector would write in another way are not among them (05, 1.50). A test holds the list to
     the injector's own. */}}
{{- define "carpool.policySettings" -}}
{{- $number := "(\\.[0-9]{0,2}[1-9])?" -}}
max-batch-size: "[1-9][0-9]{0,4}"
max-latency: {{ printf "(0|[1-9][0-9]{0,5})%s" $number | quote }}
timeout: "[1-9][0-9]{0,3}"
policy: "auto|window|adaptive"
slo: "[1-9][0-9]{0,5}"
max-in-flight: "[1-9][0-9]{0,2}"
max-batch-bytes: "0|[1-9][0-9]{0,11}"
small-batch-threshold: "0|[1-9][0-9]{0,5}"
priority-ageing: "0|[1-9][0-9]{0,5}"
max-queue-instances: "[1-9][0-9]{0,4}"
kserve-errors: "true|false"
server-timing: "true|false"
keep-alive: "[1-9][0-9]{0,3}"
head-timeout: "[1-9][0-9]{0,3}"
max-connections: "[1-9][0-9]{0,5}"
connect-timeout: "[1-9][0-9]?"
unknown-models: "batch|pass"
predictor-health-path: "/[A-Za-z0-9._~/-]{0,255}"
log-level: "debug|info|warning|error"
log-format: "auto|json|text"
{{- end -}}
