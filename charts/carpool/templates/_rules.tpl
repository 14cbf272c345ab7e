{{/* The mode, or "off" where nothing is to be made. First of all nothing that templates need may be missing: Helm takes
     out values that are null, with their defaults. */}}
{{- define "carpool.mode" -}}
{{- $missing := list -}}
{{- $needed := include "carpool.needed" . | fromYamlArray -}}
{{- range $path := $needed -}}
{{- $value := $.Values -}}
{{- $walked := list -}}
{{- range $key := splitList "." $path -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $value = index $value $key -}}
{{- $walked = append $walked $key -}}
{{- end -}}
{{- end -}}
{{- /* Of a part that may be missing nothing is needed. */ -}}
{{- if and (kindIs "invalid" $value) (has (join "." $walked) $needed) -}}
{{- $missing = append $missing (join "." $walked) -}}
{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "these values are null, and nothing works without them: leave each out for its default, or give it a value. A part with nothing below it is null; so is, with --reuse-values, what a new version of the chart has added (--reset-then-reuse-values keeps your values and takes its defaults):\n- %s" (join "\n- " (uniq $missing))) -}}
{{- end -}}
{{- ternary .Values.mode "off" .Values.enabled -}}
{{- end -}}

{{/* What no schema can say: values that exclude each other. Every problem is told at once. */}}
{{- define "carpool.check" -}}
{{- $found := list -}}
{{- $v := .Values -}}
{{- if and (eq $v.webhook.failurePolicy "Fail") (lt (int $v.replicas) 2) -}}
{{- $found = append $found (printf "webhook.failurePolicy Fail needs replicas of 2 or more, not %d: with one, no pod that asks for the sidecar could be created while it restarts. Set replicas: 2, or failurePolicy: Ignore" (int $v.replicas)) -}}
{{- end -}}
{{- if and (eq $v.certificates.mode "existingSecret") (not $v.certificates.existingSecret.name) -}}
{{- $found = append $found "certificates.mode existingSecret needs certificates.existingSecret.name, the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and (eq $v.certificates.mode "existingSecret") (not $v.certificates.existingSecret.caBundle) (not $v.webhook.annotations) -}}
{{- $found = append $found "certificates.mode existingSecret needs the CA as PEM for the API server: --set-file certificates.existingSecret.caBundle=ca.crt, or webhook.annotations that make somebody else fill it in" -}}
{{- end -}}
{{- if and $v.certificates.existingSecret.name (ne $v.certificates.mode "existingSecret") -}}
{{- $found = append $found (printf "certificates.existingSecret.name is set, but certificates.mode is %s: set the mode to existingSecret, or leave the name out" $v.certificates.mode) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.podMonitor.enabled -}}
{{- $found = append $found "serviceMonitor and podMonitor are both enabled, and would count everything twice: choose one" -}}
{{- end -}}
{{- if eq (int $v.securePort) (int $v.metricsPort) -}}
{{- $found = append $found (printf "securePort and metricsPort are both %d: give them different ones" (int $v.securePort)) -}}
{{- end -}}
{{- $resources := $v.config.resources | default dict -}}
{{- range $of := list "requests" "limits" "guaranteed" -}}
{{- $memory := include "carpool.amount" (get (get $resources $of | default dict) "memory") -}}
{{- if and $memory (lt (float64 $memory) 1048576.0) -}}
{{- $found = append $found (printf "config.resources.%s.memory must be 1Mi or more, such as 512Mi: a number alone is bytes" $of) -}}
{{- end -}}
{{- end -}}
{{- /* Mode policy cannot bound what a sidecar has in a Guaranteed pod, as the injector does. */ -}}
{{- $pairs := list (list "requests" "limits") -}}
{{- if eq $v.mode "policy" }}{{ $pairs = concat $pairs (list (list "requests" "guaranteed") (list "guaranteed" "limits")) }}{{ end -}}
{{- range $kind := list "cpu" "memory" -}}
{{- range $pair := $pairs -}}
{{- $less := include "carpool.amount" (get (get $resources (index $pair 0) | default dict) $kind) -}}
{{- $more := include "carpool.amount" (get (get $resources (index $pair 1) | default dict) $kind) -}}
{{- if and $less $more (gt (float64 $less) (float64 $more)) -}}
{{- $found = append $found (printf "config.resources.%s.%s must not exceed config.resources.%s.%s" (index $pair 0) $kind (index $pair 1) $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.config.port (eq (int $v.config.port) (int $v.config.adminPort)) -}}
{{- $found = append $found (printf "config.port and config.adminPort are both %d: give them different ones" (int $v.config.port)) -}}
{{- end -}}
{{- if and $v.missedPods.restart (not $v.missedPods.enabled) -}}
{{- $found = append $found "missedPods.restart needs missedPods.enabled, which finds the pods to restart" -}}
{{- end -}}
{{- if ge (float64 $v.quietPeriod) (float64 $v.gracePeriod) -}}
{{- $found = append $found (printf "gracePeriod (%v s) must be longer than quietPeriod (%v s)" $v.gracePeriod $v.quietPeriod) -}}
{{- end -}}
{{- if ge (float64 $v.gracePeriod) (float64 $v.terminationGracePeriodSeconds) -}}
{{- $found = append $found (printf "terminationGracePeriodSeconds (%v) must be longer than gracePeriod (%v s)" $v.terminationGracePeriodSeconds $v.gracePeriod) -}}
{{- end -}}
{{- if lt (int64 $v.maxHeldBytes) (int64 $v.maxBodyBytes) -}}
{{- $found = append $found (printf "maxHeldBytes (%d) must not be below maxBodyBytes (%d)" (int64 $v.maxHeldBytes) (int64 $v.maxBodyBytes)) -}}
{{- end -}}
{{- if and (eq $v.mode "policy") (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $found = append $found (printf "mode policy needs Kubernetes 1.34 with MutatingAdmissionPolicy switched on, or 1.36; this is %s: set mode: webhook" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $v.mode "policy") (eq $v.config.sidecarMode "classic") -}}
{{- $found = append $found "mode policy makes native sidecars only: leave config.sidecarMode at auto, or set mode: webhook" -}}
{{- end -}}
{{- if eq $v.mode "policy" -}}
{{- range $key := list "port" "adminPort" -}}
{{- if lt (int (get $v.config $key)) 1024 -}}
{{- $found = append $found (printf "config.%s must be 1024 or more with mode policy, which gives pods no sysctl for lower ports: choose another, or set mode: webhook" $key) -}}
{{- end -}}
{{- end -}}
{{- range $where := list "resources.requests.cpu" "resources.requests.memory" "resources.limits.memory" "resources.guaranteed.cpu" "resources.guaranteed.memory" -}}
{{- $value := $v.config -}}
{{- range $key := splitList "." $where -}}
{{- $value = get ($value | default dict) $key -}}
{{- end -}}
{{- if not $value -}}
{{- $found = append $found (printf "config.%s is needed with mode policy: leave out null" $where) -}}
{{- end -}}
{{- end -}}
{{- $known := include "carpool.policySettings" . | fromYaml -}}
{{- range $key, $value := $v.config.defaults -}}
{{- if not (hasKey $known $key) -}}
{{- $found = append $found (printf "config.defaults.%s is none of the settings of mode policy, and no pod would get the sidecar: leave it out, or set mode: webhook" $key) -}}
{{- else if not (regexMatch (printf "^(%s)$" (get $known $key)) $value) -}}
{{- $found = append $found (printf "config.defaults.%s is %q, but mode policy takes only what matches %s" $key $value (get $known $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (len ($v.service.ipFamilies | default list)) 2) (not (has $v.service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack"))) -}}
{{- $found = append $found "service.ipFamilies has two families: set service.ipFamilyPolicy to PreferDualStack or RequireDualStack" -}}
{{- end -}}
{{- if and (eq $v.dnsPolicy "None") (not (get ($v.dnsConfig | default dict) "nameservers")) -}}
{{- $found = append $found "dnsPolicy None needs dnsConfig.nameservers" -}}
{{- end -}}
{{- $own := list "config" "api-access" "tls" "client-ca" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $own -}}
{{- $found = append $found (printf "extraVolumes: %s is the name of a volume of the chart's own; choose another" .name) -}}
{{- end -}}
{{- end -}}
{{- /* A cluster is asked only where there is one: nothing is found when rendering without. */ -}}
{{- if not $v.webhook.namespaceSelector -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $same := and (eq (get $labels "app.kubernetes.io/instance") $.Release.Name) (eq (get (.metadata.annotations | default dict) "meta.helm.sh/release-namespace") $.Release.Namespace) -}}
{{- if and (eq (get $labels "app.kubernetes.io/part-of") "carpool") (eq (get $labels "app.kubernetes.io/component") "injector") (not $same) -}}
{{- $found = append $found (printf "another release, %s (%s), acts on the namespaces of this cluster already, and of two injectors the one that is called last decides: uninstall it, upgrade it in place of installing again, or give both releases webhook.namespaceSelector, so that each has namespaces of its own" (get $labels "app.kubernetes.io/instance") .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.priorityQuota (not $v.priorityClassName) -}}
{{- $found = append $found "priorityQuota needs priorityClassName: the quota is for pods of that class" -}}
{{- end -}}
{{- if and $v.tls.clientCA.names (not $v.tls.clientCA.configMap) -}}
{{- $found = append $found "tls.clientCA.names need tls.clientCA.configMap: without it no caller shows a certificate" -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "these values do not go together:\n- %s" (join "\n- " $found)) -}}
{{- end -}}
{{- end -}}

{{/* A quantity as a number, nothing for none. */}}
{{- define "carpool.amount" -}}
{{- with . -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" .) (get $units (regexFind "[a-zA-Z]*$" .)) -}}
{{- end -}}
{{- end -}}
