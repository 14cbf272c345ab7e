{{/* The release's part of all names; room is left for what is added to it. */}}
{{- define "carpool.base" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "carpool.name" -}}
{{- printf "%s-injector" (include "carpool.base" .) -}}
{{- end -}}

{{/* The name of what belongs to the whole cluster, where another namespace may have a release of the same name. */}}
{{- define "carpool.mutatingName" -}}
{{- printf "%s%s" .Values.webhook.namePrefix (include "carpool.name" .) -}}
{{- end -}}

{{- define "carpool.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "carpool.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name must name an existing ServiceAccount when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "carpool.secretName" -}}
{{- if eq .Values.certificates.mode "existingSecret" -}}
{{- .Values.certificates.existingSecret.name -}}
{{- else -}}
{{- printf "%s-certificates" (include "carpool.name" .) -}}
{{- end -}}
{{- end -}}

{{/* What never changes for a release: a Deployment's selector cannot. */}}
{{- define "carpool.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: injector
{{- end -}}

{{- define "carpool.labels" -}}
{{ include "carpool.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: carpool
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "carpool.image" -}}
{{- $image := .Values.image -}}
{{- with default .Values.global.imageRegistry $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{/* A sidecar's image, with the registry of all images where it names none: what stands before a name's first / is a host
     if it has a dot or a port. */}}
{{- define "carpool.sidecarImage" -}}
{{- $registry := index . 0 -}}
{{- $image := index . 1 -}}
{{- $first := splitList "/" $image | first -}}
{{- $named := and (contains "/" $image) (or (regexMatch "[.:]" $first) (eq $first "localhost")) -}}
{{- if and $registry (not $named) }}{{ $registry }}/{{ end }}{{ $image -}}
{{- end -}}

{{/* Namespaces no webhook is asked for. Without the release's own an injector could wait for itself. */}}
{{- define "carpool.namespaceExpressions" -}}
{{- $own := list "kube-system" "kube-public" "kube-node-lease" "cert-manager" .Release.Namespace -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ concat $own (.Values.webhook.excludedNamespaces | default list) | uniq | toJson }}
{{- with .Values.webhook.namespaceSelector }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "carpool.webhookMetadata" -}}
labels:
  {{- include "carpool.labels" . | nindent 2 }}
{{- $annotations := .Values.webhook.annotations | default dict -}}
{{- if eq .Values.certificates.mode "certManager" -}}
{{- $from := printf "%s/%s" .Release.Namespace (include "carpool.name" .) -}}
{{- $annotations = merge (dict "cert-manager.io/inject-ca-from" $from) $annotations -}}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* caBundle is written only where it is known here. Else its owner is who fills it in, and no upgrade takes it away. */}}
{{- define "carpool.clientConfig" -}}
{{- $ := index . 0 -}}
service:
  namespace: {{ $.Release.Namespace }}
  name: {{ include "carpool.name" $ }}
  path: {{ index . 1 }}
  port: 443
{{- if eq $.Values.certificates.mode "existingSecret" }}
{{- with $.Values.certificates.existingSecret.caBundle }}
caBundle: {{ b64enc . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The service account's token, mounted by hand so that nothing else gets one. */}}
{{- define "carpool.tokenVolume" -}}
name: api-access
projected:
  sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3607
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
    - downwardAPI:
        items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]
{{- end -}}

{{- define "carpool.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "carpool.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The admin's configuration file. null, which only some versions of Helm pass on, is the same as nothing. */}}
{{- define "carpool.config" -}}
{{- $config := dict -}}
{{- range $name, $value := .Values.config -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $config $name $value -}}
{{- end -}}
{{- end -}}
{{- $registry := .Values.global.imageRegistry -}}
{{- $_ := set $config "image" (include "carpool.sidecarImage" (list $registry $config.image)) -}}
{{- $channels := dict -}}
{{- range $name, $image := $config.channels -}}
{{- $_ := set $channels $name (include "carpool.sidecarImage" (list $registry $image)) -}}
{{- end -}}
{{- $_ := set $config "channels" $channels -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "carpool.families" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end -}}
