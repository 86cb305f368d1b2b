{{- /* Names shared by several manifests. 52 characters leave room for the suffixes of a StatefulSet. */}}

{{- define "governor-server.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "governor-server.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "governor-server.labels" -}}
{{ include "governor-server.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: server
app.kubernetes.io/part-of: runtime-governor
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "governor-server.url" -}}
{{- if .Values.publicUrl }}{{ .Values.publicUrl | trimSuffix "/" }}
{{- else if .Values.ingress.enabled }}https://{{ .Values.ingress.host }}
{{- else }}https://{{ include "governor-server.name" . }}.{{ .Release.Namespace }}.svc:8420
{{- end }}
{{- end }}
