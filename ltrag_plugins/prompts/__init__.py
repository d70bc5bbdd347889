"""What is asked (`templates`), and how a reply is read (`replies`)."""
