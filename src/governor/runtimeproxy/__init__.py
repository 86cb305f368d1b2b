"""The runtime proxy: stands between kubelet and a container runtime and lets plugins change how pods start.

Its HTTP/2 part (``http2``), its CRI messages (``cri``), what hooks and plugins mean, and the program itself. It has no
policies of its own: without plugins it changes nothing.
"""
