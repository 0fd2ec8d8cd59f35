"""Long jobs over HTTP: uploads, their folders, and the state of a job."""
