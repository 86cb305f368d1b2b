{{- /* Names shared by several manifests. 52 characters leave room for the suffixes of pods. */}}

{{- define "governor-reconciler.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- /* Name of what is outside the release's namespace, where reconcilers of other namespaces may have theirs. */}}
{{- define "governor-reconciler.qualified-name" -}}
{{ .Release.Namespace }}:{{ include "governor-reconciler.name" . }}
{{- end }}

{{- define "governor-reconciler.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "governor-reconciler.worker-name" -}}
{{ include "governor-reconciler.name" . }}-worker
{{- end }}

{{- define "governor-reconciler.worker-selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-worker
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "governor-reconciler.labels" -}}
{{ include "governor-reconciler.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: reconciler
app.kubernetes.io/part-of: runtime-governor
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "governor-reconciler.definitions" -}}
- clusters.runtime-governor.dev
- modules.runtime-governor.dev
- channels.runtime-governor.dev
- installations.runtime-governor.dev
- moduleinstances.runtime-governor.dev
{{- end }}
