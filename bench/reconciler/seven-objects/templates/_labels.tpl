{{- define "seven-objects.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
bench/revision: {{ .Values.revision | quote }}
{{- end -}}
