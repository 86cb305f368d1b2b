{{- define "generated.password" -}}
{{- randAlphaNum 24 -}}
{{- end -}}
