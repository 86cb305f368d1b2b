{{- define "shared.configuration" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    chart: {{ .root.Chart.Name }}
data: {{- toYaml .data | nindent 2 }}
{{- end -}}
