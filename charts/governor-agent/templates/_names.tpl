{{- /* Names shared by several manifests. 52 characters leave room for the suffixes of pods. */}}

{{- define "governor-agent.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- /* Name of what is outside the release's namespace, where agents of other namespaces may have theirs. */}}
{{- define "governor-agent.qualified-name" -}}
{{ .Release.Namespace }}:{{ include "governor-agent.name" . }}
{{- end }}

{{- define "governor-agent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "governor-agent.labels" -}}
{{ include "governor-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: runtime-governor
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The agent's own ConfigMaps, its inventories, are named governor-agent-RUNTIME. */}}
{{- define "governor-agent.settings" -}}
governor-settings.{{ include "governor-agent.name" . }}
{{- end }}

{{- /* Observers write no Lease, so several would all work. */}}
{{- define "governor-agent.replicas" -}}
{{ if .Values.observe.enabled }}{{ min 1 .Values.replicas }}{{ else }}{{ .Values.replicas }}{{ end }}
{{- end }}

{{- define "governor-agent.token-secret" -}}
{{- if .Values.joinToken.value }}{{ include "governor-agent.name" . }}-join{{ else }}{{ .Values.joinToken.existingSecret }}{{ end -}}
{{- end }}
