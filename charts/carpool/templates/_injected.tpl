{{/* What mode policy takes from the injector. Made by python -m tests.charts. */}}

{{/* Settings that it knows, as annotations, in the order of the sidecar's flags. */}}
{{- define "carpool.policyKeys" -}}
["carpool.dev/max-batch-size", "carpool.dev/max-latency", "carpool.dev/timeout", "carpool.dev/policy", "carpool.dev/slo", "carpool.dev/max-in-flight", "carpool.dev/max-batch-bytes", "carpool.dev/small-batch-threshold", "carpool.dev/priority-ageing", "carpool.dev/max-queue-instances", "carpool.dev/kserve-errors", "carpool.dev/server-timing", "carpool.dev/keep-alive", "carpool.dev/head-timeout", "carpool.dev/max-connections", "carpool.dev/connect-timeout", "carpool.dev/unknown-models", "carpool.dev/predictor-health-path", "carpool.dev/log-level", "carpool.dev/log-format"]
{{- end -}}

{{/* What each may be. Values that the injector would write in another way (05, 1.50) are none. */}}
{{- define "carpool.policySettings" -}}
max-batch-size: "[1-9][0-9]{0,4}"
max-latency: "(0|[1-9][0-9]{0,2})([.][0-9]{0,2}[1-9])?"
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
connect-timeout: "[1-9][0-9]{0,1}"
unknown-models: "batch|pass"
predictor-health-path: "/[A-Za-z0-9._~/-]{0,255}"
log-level: "debug|info|warning|error"
log-format: "auto|json|text"
{{- end -}}

{{/* The same as one expression, with what else a pod may say. */}}
{{- define "carpool.policyForms" -}}
max-batch-size=([1-9][0-9]{0,4})|max-latency=((0|[1-9][0-9]{0,2})([.][0-9]{0,2}[1-9])?)|timeout=([1-9][0-9]{0,3})|policy=(auto|window|adaptive)|slo=([1-9][0-9]{0,5})|max-in-flight=([1-9][0-9]{0,2})|max-batch-bytes=(0|[1-9][0-9]{0,11})|small-batch-threshold=(0|[1-9][0-9]{0,5})|priority-ageing=(0|[1-9][0-9]{0,5})|max-queue-instances=([1-9][0-9]{0,4})|kserve-errors=(true|false)|server-timing=(true|false)|keep-alive=([1-9][0-9]{0,3})|head-timeout=([1-9][0-9]{0,3})|max-connections=([1-9][0-9]{0,5})|connect-timeout=([1-9][0-9]{0,1})|unknown-models=(batch|pass)|predictor-health-path=(/[A-Za-z0-9._~/-]{0,255})|log-level=(debug|info|warning|error)|log-format=(auto|json|text)|(inject|port|takeover)=.*
{{- end -}}

{{/* Words of a command line, and images, of which an injector knows what a policy does not. */}}
{{- define "carpool.policyWords" -}}
( -[FHSUabehu]| (--?[a-z_.-]*(addr|bind|cert|host|https|key|listen|ssl|tls)|[^ ]*(127[.]|::1|localhost)|--backend|--endpoint|--fd|--file-descriptor|--task|--uds|--unix|--unix-domain-socket|--unix-socket|--urls)| runserver |mlserver|tensorflow-serving|tensorflow/serving|tensorflow_model_server|torchserve|torchserve-kfs|tritonserver)
{{- end -}}

{{/* Likewise variables. */}}
{{- define "carpool.policyVariables" -}}
^(.*(SSL|TLS).*|.*Kestrel__.*|CONSUL_REDIRECT_TRAFFIC_CONFIG|ASPNETCORE_HTTPS_PORTS|ASPNETCORE_HTTP_PORTS|ASPNETCORE_URLS|BENTOML_HOST|CARPOOL_PREDICTOR_HOST|CHAINLIT_HOST|DOTNET_HTTPS_PORTS|DOTNET_HTTP_PORTS|DOTNET_URLS|FLASK_RUN_CERT|FLASK_RUN_HOST|GRADIO_SERVER_NAME|GRANIAN_HOST|GRANIAN_UDS|GUNICORN_CMD_ARGS|HOSTNAME|HTTPS_PORTS|HTTP_PORTS|INFINITY_HOST|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|LITESTAR_HOST|LLAMA_ARG_HOST|MLFLOW_HOST|MLSERVER_HOST|MLSERVER_HTTP_PORT|OLLAMA_HOST|SERVER_ADDRESS|STREAMLIT_SERVER_ADDRESS|URLS|UVICORN_FD|UVICORN_HOST|UVICORN_UDS|_JAVA_OPTIONS)$
{{- end -}}

{{/* A pod with all that the injector puts into one by the takeover named-port, but for what depends on the pod. The
     annotations are the admin's defaults. The container `app` stands for a pod's own, with the hook that it gets, and
     with the resources of a sidecar in a pod of the class Guaranteed. */}}
{{- define "carpool.injectedPod" -}}
{{- $config := include "carpool.config" . | fromYaml -}}
{{- $given := $config.resources -}}
metadata:
  annotations:
    carpool.dev/takeover: named-port
    {{- range $key, $value := $config.defaults }}
    carpool.dev/{{ $key }}: {{ $value | quote }}
    {{- end }}
spec:
  initContainers:
    - name: carpool
      image: {{ $config.image | quote }}
      imagePullPolicy: {{ $config.imagePullPolicy | default "" | quote }}
      args:
        - --port={{ int $config.port }}
        - --admin-port={{ int $config.adminPort }}
      ports:
        - name: carpool-http
          containerPort: {{ int $config.port }}
          protocol: TCP
        - name: carpool-admin
          containerPort: {{ int $config.adminPort }}
          protocol: TCP
      resources:
        requests: {{ toJson $given.requests }}
        limits: {{ toJson (empty $given.limits.cpu | ternary (omit $given.limits "cpu") $given.limits) }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop:
            - ALL
        privileged: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        runAsUser: {{ with $config.runAsUser }}{{ int64 . }}{{ else }}null{{ end }}
        seccompProfile:
          type: RuntimeDefault
      startupProbe:
        httpGet:
          path: /livez
          port: {{ int $config.adminPort }}
          scheme: HTTP
        periodSeconds: 1
        timeoutSeconds: 5
        successThreshold: 1
        failureThreshold: 60
      readinessProbe:
        httpGet:
          path: /readyz
          port: {{ int $config.adminPort }}
          scheme: HTTP
        periodSeconds: 5
        timeoutSeconds: 5
        successThreshold: 1
        failureThreshold: 2
      livenessProbe:
        httpGet:
          path: /livez
          port: {{ int $config.adminPort }}
          scheme: HTTP
        periodSeconds: 10
        timeoutSeconds: 5
        successThreshold: 1
        failureThreshold: 6
      lifecycle:
        preStop:
          exec:
            command:
              - carpool-sidecar
              - drain
              - --admin-port={{ int $config.adminPort }}
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - name: carpool-no-token
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
      restartPolicy: Always
  containers:
    - name: app
      image: {{ $config.image | quote }}
      lifecycle:
        preStop:
          httpGet:
            path: /drained
            port: {{ int $config.adminPort }}
            scheme: HTTP
      resources:
        requests: {{ toJson $given.guaranteed }}
        limits: {{ toJson $given.guaranteed }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop:
            - ALL
        privileged: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        runAsUser: {{ with $config.runAsUser }}{{ int64 . }}{{ else }}null{{ end }}
        seccompProfile:
          type: RuntimeDefault
  volumes:
    - name: carpool-no-token
      projected:
        sources:
          - downwardAPI:
              items:
                - path: pod
                  fieldRef:
                    apiVersion: v1
                    fieldPath: metadata.name
        defaultMode: 420
{{- end -}}

{{/* The same as an object, whose annotation says what a status is like. */}}
{{- define "carpool.injected" -}}
{{- $config := .Values.config -}}
{{- $pod := include "carpool.injectedPod" . -}}
{{- $secrets := default list $config.imagePullSecrets | toJson -}}
apiVersion: v1
kind: PodTemplate
metadata:
  name: {{ include "carpool.name" . }}-policy
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "carpool.labels" . | nindent 4 }}
  annotations:
    status: '{"version":"{{ .Chart.AppVersion }}","config":"{{ print $pod $secrets | sha256sum | trunc 8 }}","takeover":"named-port","native":true,"container":"CONTAINER","appPort":NUMBER,"listenPort":{{ int $config.port }},"adminPort":{{ int $config.adminPort }},"added":falseSECRETS}'
template:
  {{- $pod | nindent 2 }}
{{- end -}}
