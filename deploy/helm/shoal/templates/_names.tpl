{{- define "shoal.labels" }}
    app.kubernetes.io/name: shoal
    app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.podSecurity" }}
      automountServiceAccountToken: false
      {{- if .Values.images.pullSecret }}
      imagePullSecrets: [{name: {{ printf "%q" .Values.images.pullSecret }}}]
      {{- end }}
      securityContext:
        runAsNonRoot: true
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "shoal.containerSecurity" }}
          imagePullPolicy: {{ .Values.images.pullPolicy }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
{{- end }}

{{- define "shoal.environment" }}
            - name: SHOAL_REDIS_URL
              {{- if .Values.redis.urlSecret }}
              valueFrom: {secretKeyRef: {name: {{ printf "%q" .Values.redis.urlSecret }}, key: url}}
              {{- else }}
              value: redis://{{ .Release.Name }}-redis:6379/0
              {{- end }}
            {{- range $name, $value := .Values.settings }}
            - name: {{ $name }}
              value: {{ printf "%v" $value | printf "%q" }}
            {{- end }}
{{- end }}
